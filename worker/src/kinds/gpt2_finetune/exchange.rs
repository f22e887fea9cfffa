//! Gradients on their way from the backward pass to the optimizer.
//!
//! The engine fills one bucket after the other. What it gives back is added up in a task beside it, by the fixed tree over all
//! microbatches, while it computes on; after this rank's last microbatch each bucket goes around the ring at once, so
//! that most of the exchange is over when the backward pass is. A bucket's memory goes back to the engine as soon as it is
//! not needed.

use std::sync::{Arc, Mutex, PoisonError};

use ringtune_shared::ring::tree::TreeSum;
use tokio::sync::mpsc;

use crate::{
    engine::{AlignedFloats, BucketPlan, Buckets, EngineError},
    rank::Error,
    ring::RankRing,
};

/// Memory for buckets, by their number; what is there is used again.
#[derive(Clone, Debug)]
pub(super) struct Spares {
    lengths: Arc<[usize]>,
    free: Arc<Mutex<Vec<Vec<AlignedFloats>>>>,
}

impl Spares {
    pub(super) fn new(plan: &BucketPlan) -> Self {
        let lengths: Arc<[usize]> = plan.buckets.iter().map(|bucket| bucket.length).collect();
        let free = lengths.iter().map(|_| Vec::new()).collect();
        Self { lengths, free: Arc::new(Mutex::new(free)) }
    }

    /// Buckets that there are.
    pub(super) fn count(&self) -> usize {
        self.lengths.len()
    }

    fn length(&self, bucket: usize) -> usize {
        self.lengths.get(bucket).copied().unwrap_or_default()
    }

    fn take(&self, bucket: usize) -> AlignedFloats {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = free.get_mut(bucket).and_then(Vec::pop);
        drop(free);
        spare.unwrap_or_else(|| AlignedFloats::zeros(self.length(bucket)))
    }

    /// It is not needed any more.
    pub(super) fn put(&self, bucket: usize, memory: AlignedFloats) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = free.get_mut(bucket) {
            free.push(memory);
        }
    }
}

/// Where the engine's gradients go.
#[derive(Debug)]
pub(super) struct Outlet {
    spares: Spares,
    /// Has room for all of them.
    given: mpsc::Sender<(usize, AlignedFloats)>,
}

/// What the engine gave, bucket by bucket.
pub(super) type Given = mpsc::Receiver<(usize, AlignedFloats)>;

impl Outlet {
    /// For one backward pass.
    pub(super) fn new(spares: &Spares) -> (Self, Given) {
        let (given, receiver) = mpsc::channel(spares.count().max(1));
        (Self { spares: spares.clone(), given }, receiver)
    }
}

impl Buckets for Outlet {
    fn take(&mut self, bucket: usize) -> Result<AlignedFloats, EngineError> {
        if self.given.is_closed() { Err(EngineError::Unwanted) } else { Ok(self.spares.take(bucket)) }
    }

    fn give(&mut self, bucket: usize, memory: AlignedFloats) -> Result<(), EngineError> {
        // Full it cannot be: each bucket is given once.
        self.given.try_send((bucket, memory)).map_err(|_| EngineError::Unwanted)
    }
}

/// The gradients of a step so far.
#[derive(Debug)]
pub(super) struct StepSums {
    spares: Spares,
    /// Of this rank's microbatches, bucket by bucket.
    own: Vec<Option<TreeSum<AlignedFloats>>>,
    /// Of all ranks', in the plan's order.
    whole: Vec<AlignedFloats>,
}

impl StepSums {
    /// `total`: microbatches over all ranks.
    pub(super) fn new(spares: &Spares, total: usize) -> Self {
        let own = (0..spares.count()).map(|_| Some(TreeSum::new(total))).collect();
        Self { spares: spares.clone(), own, whole: Vec::new() }
    }

    /// Adds up what a microbatch gives, as it comes.
    ///
    /// # Errors
    /// A task died.
    pub(super) async fn add(&mut self, microbatch: usize, mut given: Given) -> Result<(), Error> {
        while let Some((bucket, memory)) = given.recv().await {
            self.push(microbatch, bucket, memory).await?;
        }
        Ok(())
    }

    /// The same for this rank's last microbatch: each bucket goes around the ring at once.
    ///
    /// # Errors
    /// The ring's; a task died.
    pub(super) async fn add_last(
        &mut self,
        microbatch: usize,
        mut given: Given,
        ring: &mut RankRing,
    ) -> Result<(), Error> {
        while let Some((bucket, memory)) = given.recv().await {
            self.push(microbatch, bucket, memory).await?;
            let Some(own) = self.own.get_mut(bucket).and_then(Option::take) else { continue };
            let whole = match own.into_whole() {
                // A rank that is alone.
                Ok(whole) => whole,
                Err(own) => self.exchange(bucket, own, ring).await?,
            };
            // Buckets come in the plan's order.
            self.whole.push(whole);
        }
        Ok(())
    }

    async fn push(&mut self, microbatch: usize, bucket: usize, memory: AlignedFloats) -> Result<(), Error> {
        let Some(mut sum) = self.own.get_mut(bucket).and_then(Option::take) else { return Ok(()) };
        // Millions of numbers, off the runtime's threads.
        let add = move || {
            let spare = sum.push(microbatch, memory);
            (sum, spare)
        };
        let (sum, spare) = ringtune_shared::tasks::spawn_blocking(add).await?;
        if let Some(spare) = spare {
            self.spares.put(bucket, spare);
        }
        if let Some(own) = self.own.get_mut(bucket) {
            *own = Some(sum);
        }
        Ok(())
    }

    /// The ring takes and gives memory of its own: one copy each way, a bucket at a time.
    async fn exchange(
        &mut self,
        bucket: usize,
        own: TreeSum<AlignedFloats>,
        ring: &mut RankRing,
    ) -> Result<AlignedFloats, Error> {
        let (spares, length) = (self.spares.clone(), self.spares.length(bucket));
        let copy = move || {
            let mut first = None;
            let copied = own.map(|memory| {
                let numbers = memory.to_vec();
                match first {
                    None => first = Some(memory),
                    Some(_) => spares.put(bucket, memory),
                }
                numbers
            });
            (copied, first)
        };
        let (own, first) = ringtune_shared::tasks::spawn_blocking(copy).await?;
        let mut whole = first.unwrap_or_else(|| self.spares.take(bucket));
        let sum = ring.sum(own, length).await?;
        let put_back = move || {
            whole.copy_from_slice(&sum);
            whole
        };
        Ok(ringtune_shared::tasks::spawn_blocking(put_back).await?)
    }

    /// The gradients of all microbatches, added up, in the plan's order. None: a bucket is missing.
    pub(super) fn into_whole(self) -> Option<Vec<AlignedFloats>> {
        (self.whole.len() == self.spares.count()).then_some(self.whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_a_pass_that_nobody_wants_ends() {
        let plan = BucketPlan::new(
            &[crate::engine::Parameter::new("a", vec![3])],
            &[0],
            crate::engine::BucketSizes::default(),
        );
        let spares = Spares::new(&plan);
        let (mut outlet, mut given) = Outlet::new(&spares);
        let memory = outlet.take(0).unwrap();
        let place = memory.as_ptr();
        outlet.give(0, memory).unwrap();
        let (bucket, memory) = given.try_recv().unwrap();
        spares.put(bucket, memory);
        assert_eq!((spares.take(0).as_ptr(), spares.take(0).len()), (place, 3));
        drop(given);
        assert!(matches!(outlet.take(0), Err(EngineError::Unwanted)));
        assert!(matches!(outlet.give(0, AlignedFloats::zeros(3)), Err(EngineError::Unwanted)));
    }
}
