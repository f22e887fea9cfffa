//! Steps of a rank's gradients, without an update, for whoever times how much of their exchange the backward pass hides.

use std::{error::Error, future::Future, time::Instant};

use ringtune_shared::{
    job::SumOrder,
    ring::{Reach, Spread},
};

use crate::{
    engine::{EmbeddingRows, EngineHandle, LanguageModelInfo, TokenBatch},
    parameters::{Spares, StepSums},
    ring::RankRing,
};

/// Whatever went wrong.
type Failure = Box<dyn Error + Send + Sync>;

/// When the buckets of a rank's last microbatch go around the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// Each as soon as it is full, as in a job.
    AtOnce,
    /// All when the backward pass is over: nothing is hidden.
    Afterwards,
}

/// What a step took, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct GradientTimes {
    /// All of it.
    pub step: f64,
    /// Forward and backward passes.
    pub compute: f64,
    /// From the end of this rank's last backward pass until all is added up.
    pub exposed: f64,
}

/// One rank of a ring, with a model that is open.
#[derive(Debug)]
pub struct GradientBench {
    engine: EngineHandle,
    ring: RankRing,
    spares: Spares,
    spread: Spread,
    batches: Vec<TokenBatch>,
}

impl GradientBench {
    /// `batches`: the microbatches of a step, over all ranks, on a model that `engine` has open; what they look up is found here.
    pub fn new(
        engine: EngineHandle,
        ring: RankRing,
        model: &LanguageModelInfo,
        mut batches: Vec<TokenBatch>,
    ) -> Self {
        let looked_up = EmbeddingRows::of(batches.iter().flat_map(|batch| batch.inputs.iter().copied()));
        let spares =
            Spares::new(&model.parameters.plan).of_step(model.parameters.looked_up_length(&looked_up));
        batches.iter_mut().for_each(|batch| batch.looked_up = looked_up.clone());
        let spread = Spread { granule: model.parameters.part, reach: Reach::All };
        Self { engine, ring, spares, spread, batches }
    }

    /// One step, which all ranks begin together.
    ///
    /// # Errors
    /// The engine's, or the ring's.
    pub async fn step(&mut self, exchange: SumOrder, leaving: Leaving) -> Result<GradientTimes, Failure> {
        self.ring.gather_one_each(vec![0.0]).await?;
        let began = Instant::now();
        let mut sums =
            StepSums::new(&self.spares, exchange.into(), self.ring.all_microbatches(), self.spread);
        let own = self.ring.microbatches();
        let (mut compute, mut ended) = (0.0, began);
        for microbatch in own.clone() {
            let (outlet, given) = sums.outlet();
            let batch = self.batches.get(microbatch as usize).ok_or("a microbatch is missing")?;
            let (engine, batch) = (self.engine.clone(), TokenBatch { add: outlet.adds(), ..batch.clone() });
            let computing = async move {
                let (gradient, _) = engine.language_gradient(batch, outlet).await?;
                Ok::<_, Failure>((gradient.forward_seconds + gradient.backward_seconds, Instant::now()))
            };
            let (index, ring) = (microbatch as usize, &mut self.ring);
            let (seconds, computed) = if microbatch + 1 < own.end {
                both(computing, async { Ok(sums.add(index, given).await?) }).await?
            } else if leaving == Leaving::AtOnce {
                both(computing, async { Ok(sums.add_last(index, given, ring).await?) }).await?
            } else {
                let computed = computing.await?;
                sums.add_last(index, given, ring).await?;
                computed
            };
            compute += seconds;
            ended = computed;
        }
        let buckets = sums.into_whole().ok_or("a bucket is missing")?;
        let times = GradientTimes {
            step: began.elapsed().as_secs_f64(),
            compute,
            exposed: ended.elapsed().as_secs_f64(),
        };
        buckets.into_iter().enumerate().for_each(|(bucket, memory)| self.spares.put(bucket, memory));
        Ok(times)
    }
}

async fn both<T>(
    computing: impl Future<Output = Result<T, Failure>>,
    travelling: impl Future<Output = Result<(), Failure>>,
) -> Result<T, Failure> {
    tokio::try_join!(computing, travelling).map(|(computed, ())| computed)
}
