//! Gradients on their way from the backward pass to the optimizer.
//!
//! The engine fills one bucket after the other. Where sums are to be exact, what it gives back is added up in a task beside it,
//! by the fixed tree over all microbatches, while it computes on; where they are to be fast, the engine itself adds a
//! microbatch to those before. After this rank's last microbatch each bucket goes around the ring at once, so that most
//! of the exchange is over when the backward pass is. A bucket's memory goes back to the engine as soon as it is not needed.
//!
//! Behind the plan's buckets comes one more, of the rows that the step looks up ([`EmbeddingRows`](crate::engine::EmbeddingRows)). It is like
//! the others, but as long as each step makes it: the same for all microbatches of a step, whoever computes them.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use ringtune_shared::{
    job::SumOrder,
    ring::{Element, Reach, Spread, Summed, tree::TreeSum},
};
use tokio::sync::mpsc;

use crate::{
    engine::{AlignedFloats, BucketPlan, Buckets, EngineError},
    rank::Error,
    ring::RankRing,
};

/// How gradients are added up over the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exchange {
    /// By a fixed tree over all microbatches: the same bits for any number of ranks.
    Exact,
    /// In the ring's own order, in numbers that travel so.
    Fast(Element),
}

impl fmt::Display for Exchange {
    /// The word in job files.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Exact => "exact",
            Self::Fast(Element::Fp32) => "fast",
            Self::Fast(Element::Bf16) => "fast_bf16",
        })
    }
}

impl From<SumOrder> for Exchange {
    fn from(exchange: SumOrder) -> Self {
        match exchange {
            // What comes of a round is added up exactly: that costs little, once in many steps.
            SumOrder::Exact | SumOrder::Local => Self::Exact,
            SumOrder::Fast => Self::Fast(Element::Fp32),
            SumOrder::FastBf16 => Self::Fast(Element::Bf16),
        }
    }
}

/// Memory for buckets, by their number; what is there is used again.
#[derive(Clone, Debug)]
pub(crate) struct Spares {
    pub(super) plan: Arc<BucketPlan>,
    /// Numbers of the bucket behind the plan's.
    looked_up: usize,
    free: Arc<Mutex<Vec<Vec<AlignedFloats>>>>,
}

impl Spares {
    pub(crate) fn new(plan: &BucketPlan) -> Self {
        let free = (0..=plan.buckets.len()).map(|_| Vec::new()).collect();
        Self { plan: Arc::new(plan.clone()), looked_up: 0, free: Arc::new(Mutex::new(free)) }
    }

    /// The same memory, for a step whose bucket of what is looked up has so many numbers.
    pub(crate) fn of_step(&self, looked_up: usize) -> Self {
        Self { looked_up, ..self.clone() }
    }

    /// Buckets that there are.
    pub(super) fn count(&self) -> usize {
        self.plan.buckets.len() + 1
    }

    fn length(&self, bucket: usize) -> usize {
        self.plan.buckets.get(bucket).map_or(self.looked_up, |bucket| bucket.length)
    }

    fn take(&self, bucket: usize) -> AlignedFloats {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = free.get_mut(bucket).and_then(Vec::pop);
        drop(free);
        // As large as any step needed it so far.
        spare.unwrap_or_default().resized(self.length(bucket))
    }

    /// It is not needed any more.
    pub(crate) fn put(&self, bucket: usize, memory: AlignedFloats) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = free.get_mut(bucket) {
            free.push(memory);
        }
    }
}

/// Where the engine's gradients go.
#[derive(Debug)]
pub(crate) struct Outlet {
    spares: Spares,
    /// What the engine adds to, by the buckets' numbers. None: it begins anew.
    held: Option<Vec<Option<AlignedFloats>>>,
    /// Has room for all of them.
    given: mpsc::Sender<(usize, AlignedFloats)>,
}

/// What the engine gave, bucket by bucket.
pub(crate) type Given = mpsc::Receiver<(usize, AlignedFloats)>;

impl Outlet {
    /// For one backward pass; `held`: what it adds to, if to anything.
    pub(super) fn new(spares: &Spares, held: Option<Vec<Option<AlignedFloats>>>) -> (Self, Given) {
        let (given, receiver) = mpsc::channel(spares.count().max(1));
        (Self { spares: spares.clone(), held, given }, receiver)
    }

    /// Whether the engine is to add to what it takes.
    pub(crate) fn adds(&self) -> bool {
        self.held.is_some()
    }
}

impl Buckets for Outlet {
    fn take(&mut self, bucket: usize) -> Result<AlignedFloats, EngineError> {
        if self.given.is_closed() {
            return Err(EngineError::Unwanted);
        }
        match &mut self.held {
            None => Ok(self.spares.take(bucket)),
            // What is not there the pass before did not give.
            Some(held) => held.get_mut(bucket).and_then(Option::take).ok_or(EngineError::Unwanted),
        }
    }

    fn give(&mut self, bucket: usize, memory: AlignedFloats) -> Result<(), EngineError> {
        // Full it cannot be: each bucket is given once.
        self.given.try_send((bucket, memory)).map_err(|_| EngineError::Unwanted)
    }
}

/// The gradients of a step so far.
#[derive(Debug)]
pub(crate) struct StepSums {
    spares: Spares,
    own: Own,
    /// Which ranks get which sums of the plan's buckets.
    spread: Spread,
    /// Of all ranks', in the plan's order.
    whole: Vec<AlignedFloats>,
}

/// Of this rank's microbatches, bucket by bucket.
#[derive(Debug)]
enum Own {
    /// By the tree, as far as they make nodes of it.
    Exact(Vec<Option<TreeSum<AlignedFloats>>>),
    /// One after the other.
    Fast { sums: Vec<Option<AlignedFloats>>, begun: bool, element: Element },
}

impl Own {
    fn fast(buckets: usize, element: Element) -> Self {
        Self::Fast { sums: (0..buckets).map(|_| None).collect(), begun: false, element }
    }
}

impl StepSums {
    /// `total`: microbatches over all ranks; `spread`: which ranks get which sums of the plan's buckets. Those of what is looked up all
    /// ranks get.
    pub(crate) fn new(spares: &Spares, exchange: Exchange, total: usize, spread: Spread) -> Self {
        let buckets = 0..spares.count();
        let own = match exchange {
            Exchange::Exact => Own::Exact(buckets.map(|_| Some(TreeSum::new(total))).collect()),
            Exchange::Fast(element) => Own::fast(buckets.len(), element),
        };
        Self { spares: spares.clone(), own, spread, whole: Vec::new() }
    }

    /// For the backward pass of this rank's next microbatch.
    pub(crate) fn outlet(&mut self) -> (Outlet, Given) {
        let held = match &mut self.own {
            Own::Fast { sums, begun: true, .. } => Some(sums.iter_mut().map(Option::take).collect()),
            Own::Fast { begun, .. } => {
                *begun = true;
                None
            }
            Own::Exact(_) => None,
        };
        Outlet::new(&self.spares, held)
    }

    /// Adds up what a microbatch gives, as it comes.
    ///
    /// # Errors
    /// A task died.
    pub(crate) async fn add(&mut self, microbatch: usize, mut given: Given) -> Result<(), Error> {
        while let Some((bucket, memory)) = given.recv().await {
            self.push(microbatch, bucket, memory).await?;
        }
        Ok(())
    }

    /// The same for this rank's last microbatch: each bucket goes around the ring at once.
    ///
    /// # Errors
    /// The ring's; a task died.
    pub(crate) async fn add_last(
        &mut self,
        microbatch: usize,
        mut given: Given,
        ring: &mut RankRing,
    ) -> Result<(), Error> {
        while let Some((bucket, memory)) = given.recv().await {
            self.push(microbatch, bucket, memory).await?;
            let spread = self.spread_of(bucket);
            let whole = match &mut self.own {
                Own::Exact(sums) => {
                    let Some(own) = sums.get_mut(bucket).and_then(Option::take) else { continue };
                    match own.into_whole() {
                        // A rank that is alone.
                        Ok(whole) => whole,
                        Err(own) => self.exchange(bucket, own, spread, ring).await?,
                    }
                }
                Own::Fast { sums, element, .. } => {
                    let Some(own) = sums.get_mut(bucket).and_then(Option::take) else { continue };
                    ring.sum_fast(own, *element, spread).await?
                }
            };
            // Buckets come in the plan's order.
            self.whole.push(whole);
        }
        Ok(())
    }

    fn spread_of(&self, bucket: usize) -> Spread {
        let is_of_plan = bucket + 1 < self.spares.count();
        if is_of_plan { self.spread } else { Spread { reach: Reach::All, ..self.spread } }
    }

    async fn push(&mut self, microbatch: usize, bucket: usize, memory: AlignedFloats) -> Result<(), Error> {
        let own = match &mut self.own {
            Own::Exact(sums) => sums,
            Own::Fast { sums, .. } => {
                // The engine has added.
                if let Some(sum) = sums.get_mut(bucket) {
                    *sum = Some(memory);
                }
                return Ok(());
            }
        };
        let Some(mut sum) = own.get_mut(bucket).and_then(Option::take) else { return Ok(()) };
        // Millions of numbers, off the runtime's threads.
        let add = move || {
            let spare = sum.push(microbatch, memory);
            (sum, spare)
        };
        let (sum, spare) = ringtune_shared::tasks::spawn_blocking(add).await?;
        if let Some(spare) = spare {
            self.spares.put(bucket, spare);
        }
        if let Some(own) = own.get_mut(bucket) {
            *own = Some(sum);
        }
        Ok(())
    }

    /// The ring borrows the bucket, and gives it back with the sum in it.
    async fn exchange(
        &mut self,
        bucket: usize,
        own: TreeSum<AlignedFloats>,
        spread: Spread,
        ring: &mut RankRing,
    ) -> Result<AlignedFloats, Error> {
        let (spares, length) = (self.spares.clone(), self.spares.length(bucket));
        let Summed { sum, spare } = ring.sum(own, length, move || spares.take(bucket), spread).await?;
        spare.into_iter().for_each(|memory| self.spares.put(bucket, memory));
        Ok(sum)
    }

    /// The gradients of all microbatches, added up, in the plan's order. None: a bucket is missing.
    pub(crate) fn into_whole(self) -> Option<Vec<AlignedFloats>> {
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
        let (mut outlet, mut given) = Outlet::new(&spares, None);
        let memory = outlet.take(0).unwrap();
        let place = memory.as_ptr();
        outlet.give(0, memory).unwrap();
        let (bucket, memory) = given.try_recv().unwrap();
        spares.put(bucket, memory);
        assert_eq!((spares.take(0).as_ptr(), spares.take(0).len()), (place, 3));
        // The bucket behind the plan's is as long as the step wants it.
        let (large, small) = (spares.of_step(40), spares.of_step(8));
        let memory = large.take(1);
        let place = memory.as_ptr();
        large.put(1, memory);
        let memory = small.take(1);
        assert_eq!((memory.as_ptr(), memory.len()), (place, 8));
        small.put(1, memory);
        let memory = large.take(1);
        assert_eq!((memory.as_ptr(), memory.len(), large.count()), (place, 40, 2));
        drop(given);
        assert!(matches!(outlet.take(0), Err(EngineError::Unwanted)));
        assert!(matches!(outlet.give(0, AlignedFloats::zeros(3)), Err(EngineError::Unwanted)));
    }

    #[tokio::test]
    async fn the_engine_adds_to_what_it_gave_where_sums_are_fast() {
        let parameters = [crate::engine::Parameter::new("a", vec![3])];
        let spares = Spares::new(&BucketPlan::new(&parameters, &[0], crate::engine::BucketSizes::default()));
        for (exchange, adds) in [
            (Exchange::Fast(Element::Fp32), true),
            (Exchange::Fast(Element::Bf16), true),
            (Exchange::Exact, false),
        ] {
            let mut sums = StepSums::new(&spares, exchange, 3, Spread::EVEN);
            let mut before = None;
            for microbatch in 0..3 {
                let (mut outlet, given) = sums.outlet();
                assert_eq!(outlet.adds(), adds && microbatch > 0);
                let mut memory = outlet.take(0).unwrap();
                if adds {
                    assert!(before.is_none_or(|place| place == memory.as_ptr() as usize));
                    assert_eq!(memory[2], if microbatch > 0 { 1.0 } else { memory[2] });
                }
                before = Some(memory.as_ptr() as usize);
                memory.fill(1.0);
                outlet.give(0, memory).unwrap();
                // There is one of each.
                assert!(!adds || microbatch == 0 || outlet.take(0).is_err());
                drop(outlet);
                sums.add(microbatch, given).await.unwrap();
            }
        }
    }

    #[test]
    fn exchanges_are_called_as_in_job_files() {
        for given in [SumOrder::Exact, SumOrder::Fast, SumOrder::FastBf16] {
            assert_eq!(Exchange::from(given).to_string(), given.to_string());
        }
        assert_eq!(Exchange::from(SumOrder::Local), Exchange::Exact);
    }
}
