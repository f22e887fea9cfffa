//! Which images the microbatches of a job with buckets show.

use super::draws::Draws;

/// Every microbatch shows images of one bucket. In a pass each bucket's images are permuted and cut into full
/// microbatches, the last one of a bucket filled up from the beginning of the same permutation; then the list of all
/// buckets' microbatches, in the order of the buckets, is permuted. Microbatch number n of the whole job is entry
/// n mod L of the list of pass n div L, where L is its length, the same in every pass. So the order depends on the
/// seed, the images and the microbatches' size alone.
#[derive(Clone, Debug)]
pub(super) struct BucketOrder {
    draws: Draws,
    /// The images of each bucket, by their numbers; none empty.
    buckets: Vec<Vec<usize>>,
    batch: usize,
    microbatches_per_step: u32,
    /// The list of one pass, kept because neighbouring microbatches are in the same.
    pass: u64,
    list: Vec<Vec<usize>>,
}

impl BucketOrder {
    /// `buckets`: at least one, each with at least one image. `batch`: samples in a microbatch, and
    /// `microbatches_per_step`: M over all ranks, both at least 1.
    pub(super) fn new(
        draws: Draws,
        buckets: Vec<Vec<usize>>,
        batch: u32,
        microbatches_per_step: u32,
    ) -> Self {
        let batch = batch.max(1) as usize;
        let list = list_of_pass(draws, &buckets, batch, 0);
        Self { draws, buckets, batch, microbatches_per_step, pass: 0, list }
    }

    /// The images that microbatch `microbatch` (from 0, below M) of step `step` (from 1) shows, as many as it has
    /// samples.
    pub(super) fn images_of(&mut self, step: u64, microbatch: u32) -> &[usize] {
        let number = step.saturating_sub(1) * u64::from(self.microbatches_per_step) + u64::from(microbatch);
        let length = self.list.len().max(1) as u64;
        let pass = number / length;
        if pass != self.pass {
            self.list = list_of_pass(self.draws, &self.buckets, self.batch, pass);
            self.pass = pass;
        }
        self.list.get((number % length) as usize).map_or(&[], Vec::as_slice)
    }

    /// Samples of a pass, those that fill microbatches up counted.
    pub(super) fn samples_of_pass(&self) -> u64 {
        self.list.len() as u64 * self.batch as u64
    }
}

fn list_of_pass(draws: Draws, buckets: &[Vec<usize>], batch: usize, pass: u64) -> Vec<Vec<usize>> {
    let mut list = Vec::new();
    for (bucket, images) in buckets.iter().enumerate() {
        let order = draws.bucket_order(pass, bucket as u32, images.len());
        let microbatches = images.len().div_ceil(batch);
        let mut endless = order.iter().cycle().filter_map(|place| images.get(*place).copied());
        list.extend((0..microbatches).map(|_| endless.by_ref().take(batch).collect::<Vec<usize>>()));
    }
    let order = draws.microbatch_order(pass, list.len());
    order.into_iter().map(|place| std::mem::take(&mut list[place])).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Buckets of these sizes; their images are numbered through.
    fn buckets(sizes: &[usize]) -> Vec<Vec<usize>> {
        let mut next = 0..;
        sizes.iter().map(|size| next.by_ref().take(*size).collect()).collect()
    }

    #[test]
    fn the_last_microbatch_is_filled_up_from_the_same_bucket() {
        let mut order = BucketOrder::new(Draws::new(3), buckets(&[5, 1]), 2, 1);
        let mut shown: Vec<Vec<usize>> = (1..=4).map(|step| order.images_of(step, 0).to_vec()).collect();
        assert!(shown.iter().all(|images| images.len() == 2));
        shown.retain(|images| images != &[5, 5]);
        let mut counts = BTreeMap::new();
        shown.concat().into_iter().for_each(|image| *counts.entry(image).or_insert(0) += 1);
        assert_eq!(counts.values().sum::<i32>(), 6);
        assert_eq!(counts.len(), 5);
    }

    proptest! {
        #[test]
        fn a_pass_shows_every_image_and_a_microbatch_one_bucket(
            sizes in prop::collection::vec(1usize..9, 1..5), batch in 1u32..5, per_step in 1u32..4, pass in 0u64..4,
        ) {
            let all = buckets(&sizes);
            let length: usize = sizes.iter().map(|size| size.div_ceil(batch as usize)).sum();
            let mut order = BucketOrder::new(Draws::new(5), all.clone(), batch, per_step);
            let start = pass * length as u64;
            let mut shown = BTreeMap::new();
            for number in start..start + length as u64 {
                let (step, microbatch) = (number / u64::from(per_step) + 1, (number % u64::from(per_step)) as u32);
                let images = order.images_of(step, microbatch).to_vec();
                prop_assert_eq!(images.len(), batch as usize);
                let bucket = all.iter().find(|bucket| bucket.contains(&images[0])).unwrap();
                prop_assert!(images.iter().all(|image| bucket.contains(image)));
                images.into_iter().for_each(|image| *shown.entry(image).or_insert(0usize) += 1);
            }
            prop_assert_eq!(shown.len(), sizes.iter().sum::<usize>());
            for (bucket, size) in all.iter().zip(&sizes) {
                // Filling up shows no image of a bucket more than once more than another.
                let counts = bucket.iter().map(|image| shown[image]);
                prop_assert!(counts.clone().max().unwrap() - counts.min().unwrap() <= 1, "{}", size);
            }
        }

        #[test]
        fn the_order_of_asking_does_not_matter(step in 1u64..50, microbatch in 0u32..3, before in 1u64..50) {
            let mut fresh = BucketOrder::new(Draws::new(4), buckets(&[4, 3]), 2, 3);
            let mut used = fresh.clone();
            used.images_of(before, 2);
            prop_assert_eq!(used.images_of(step, microbatch), fresh.images_of(step, microbatch));
        }

        #[test]
        fn cutting_a_step_otherwise_changes_nothing(number in 0u64..60) {
            let mut ones = BucketOrder::new(Draws::new(4), buckets(&[4, 3, 1]), 2, 1);
            let mut threes = BucketOrder::new(Draws::new(4), buckets(&[4, 3, 1]), 2, 3);
            prop_assert_eq!(ones.images_of(number + 1, 0), threes.images_of(number / 3 + 1, (number % 3) as u32));
        }
    }
}
