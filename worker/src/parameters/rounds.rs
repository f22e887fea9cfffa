//! Rounds: the steps that a microbatch's replica of the parameters takes by itself.
//!
//! Each microbatch of a step has a replica, on whichever rank computes it. It begins with the parameters that all have, takes its steps
//! with moments of its own, which begin with zeros, and gives how far it came as if that were a gradient. So what a round makes follows
//! from its microbatches alone: the same bits for any number of ranks, and a rank that is lost in the middle takes nothing with it.
//!
//! Source: Douillard et al. 2023, DiLoCo, algorithm 1, whose replicas keep their moments from round to round.

use std::time::Instant;

use super::{Model, Outlet, ParameterTrainee, Rounds, step::Passed};
use crate::{
    engine::{AlignedFloats, Buckets, EngineError, OptimizerStep, OuterStep},
    rank::Error,
};

impl Rounds {
    /// The step that all take together.
    pub(super) fn outer_step(self, step: &OptimizerStep) -> OuterStep {
        let OptimizerStep { divide_by, average_decay, .. } = *step;
        OuterStep { learning_rate: self.learning_rate, momentum: self.momentum, divide_by, average_decay }
    }
}

impl<M: Model> ParameterTrainee<M> {
    /// The round of a microbatch's replica; `outlet` takes how far it came. `microbatches`: of all ranks.
    pub(super) async fn round(
        &mut self,
        rounds: Rounds,
        [step, microbatches]: [u64; 2],
        microbatch: u32,
        mut outlet: Outlet,
    ) -> Result<Passed, Error> {
        let microbatches = u32::try_from(microbatches).unwrap_or(u32::MAX);
        // 1. A checkpoint of the state before it may still be on its way to the disk.
        self.state.tensors.holds.all_let_go().await;
        self.in_round = true;
        self.engine.begin_round().await.map_err(Error::of_engine)?;
        // 2. The replica's steps. One whose gradient is not finite is skipped, and does not count for its moments.
        let (mut loss, mut seconds, mut count) = (0.0, 0.0, 0);
        let mut buckets = Vec::new();
        for local in rounds.steps_of(step) {
            let batch = self.model.batch(local, microbatch).await?;
            let looked_up = self.model.embedding_rows(local, microbatches).await?;
            let spares = self.spares.of_step(looked_up.count() * self.width);
            self.put_back(std::mem::take(&mut buckets));
            let (own, mut given) = Outlet::new(&spares, None);
            let gradient = M::gradient(&self.engine, batch, looked_up.clone(), own);
            let gradient = self.durations.timed(&self.engine, gradient).await?;
            while let Ok((_, memory)) = given.try_recv() {
                buckets.push(memory);
            }
            let optimizer = self.optimizer_step(step, count + 1);
            let applied;
            (applied, buckets) =
                self.engine.apply(optimizer, looked_up, buckets).await.map_err(Error::of_engine)?;
            count += u64::from(!applied.skipped);
            loss += f64::from(gradient.loss);
            seconds += gradient.forward_seconds + gradient.backward_seconds;
        }
        // 3. How far it came. Of what was looked up nothing is left to say.
        let ended = Instant::now();
        self.put_back(buckets);
        let taken = (0..self.spares.count()).map(|number| outlet.take(number));
        let taken = taken.collect::<Result<Vec<AlignedFloats>, EngineError>>().map_err(Error::of_engine)?;
        let moved = self.engine.end_round(taken).await.map_err(Error::of_engine)?;
        self.in_round = false;
        for (number, memory) in moved.into_iter().enumerate() {
            outlet.give(number, memory).map_err(Error::of_engine)?;
        }
        Ok(Passed { loss: (loss / rounds.local_steps.max(1) as f64) as f32, seconds, ended })
    }

    /// Where a ring was lost in the middle of a round: the parameters are again those of the last step.
    pub(super) async fn give_up_round(&mut self) -> Result<(), Error> {
        if self.in_round {
            self.engine.end_round(Vec::new()).await.map_err(Error::of_engine)?;
            self.in_round = false;
        }
        Ok(())
    }
}
