//! What is carried out between two steps because a user ordered it.

use std::future::Future;

use ringtune_shared::{job::Order, ring::RingError};

use super::{
    steps::Training,
    trainee::{Sampled, Trainee},
};
use crate::{
    rank::{Error, GivenUp, Rank},
    ring::RankRing,
};

impl<T: Trainee> Training<T> {
    /// Carries out what was ordered for the state after the settled step, together with all other ranks. Where the ring breaks on
    /// the way, all of it is done again in the next one: the files are the same.
    pub(super) async fn carry_out(
        &mut self,
        rank: &Rank,
        ring: &mut RankRing,
        given_up: &mut GivenUp<impl Future<Output = RingError>>,
    ) -> Result<(), Error> {
        let step = self.step();
        if self.trainee.course().proof.is_some() || step == 0 {
            return Ok(());
        }
        for live in rank.assignment.orders.iter().filter(|live| live.settled == Some(step)) {
            match &live.order {
                Order::Snapshot => self.take_snapshot(rank, ring, given_up).await?,
                Order::Sample(prompt) => {
                    tokio::select! {
                        drawn = self.draw_sample(rank, (live.number, prompt), ring) => drawn?,
                        error = given_up.reason() => return Err(error),
                    }
                }
                // They are part of the job.
                Order::LearningRate(_) | Order::Stop => {}
            }
        }
        Ok(())
    }

    /// Rank 0 keeps the state, and what is learned.
    async fn take_snapshot(
        &mut self,
        rank: &Rank,
        ring: &mut RankRing,
        given_up: &mut GivenUp<impl Future<Output = RingError>>,
    ) -> Result<(), Error> {
        if self.trainee.is_shared() {
            self.collect(rank, ring, given_up).await?;
        }
        let (step, state) = (self.step(), self.whole_state());
        let pending = self.is_pending(step);
        let Some(files) = &mut self.files else { return Ok(()) };
        files.save_step(&self.trainee, &self.trainee.learned()).await?;
        match state {
            Some(state) => files.save_checkpoint(step, state, pending, None).await,
            None => Ok(()),
        }
    }

    /// Shows with a prompt what is learned so far. Where that cannot be, it is told, and training goes on.
    async fn draw_sample(
        &mut self,
        rank: &Rank,
        (order, prompt): (u64, &str),
        ring: &mut RankRing,
    ) -> Result<(), Error> {
        let step = self.step();
        let sampled = match self.trainee.sample(prompt, ring).await {
            Ok(Some(sampled)) => sampled,
            Ok(None) => return Ok(()),
            Err(error @ Error::Ring(_)) => return Err(error),
            Err(error) => {
                rank.journal.warn(format!("order {order}: {error}")).await;
                return Ok(());
            }
        };
        match &sampled {
            Sampled::Pictures(drawn) => {
                for failure in &drawn.failures {
                    rank.journal.warn(format!("order {order}: {failure}")).await;
                }
            }
            Sampled::Text(text) => rank.journal.info(format!("order {order}: text {}", text.said())).await,
        }
        match &mut self.files {
            Some(files) => files.save_sample((order, step), sampled).await,
            None => Ok(()),
        }
    }
}
