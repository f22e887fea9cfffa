//! Which image a sample shows.

use super::draws::Draws;

/// Shows N images again and again without replacement, each pass in an order of its own: sample g of the whole job
/// shows image `order(g div N)[g mod N]`.
#[derive(Clone, Debug)]
pub struct ImageOrder {
    draws: Draws,
    stream: u32,
    images: usize,
    samples_per_step: u64,
    /// The order of one pass, kept because neighbouring samples are in the same.
    pass: u64,
    order: Vec<usize>,
}

impl ImageOrder {
    /// `stream`: see [`Draws::image_order`]. `images`: N, at least 1. `samples_per_step`: the global batch M x b, at least 1.
    pub fn new(draws: Draws, stream: u32, images: usize, samples_per_step: u64) -> Self {
        Self { draws, stream, images, samples_per_step, pass: 0, order: draws.image_order(0, stream, images) }
    }

    /// The image (below N) that sample `sample` (from 0, over the whole global batch) of step `step` (from 1) shows.
    pub fn image_of(&mut self, step: u64, sample: u32) -> usize {
        let images = self.images.max(1) as u64;
        let number = step.saturating_sub(1) * self.samples_per_step + u64::from(sample);
        let pass = number / images;
        if pass != self.pass {
            self.order = self.draws.image_order(pass, self.stream, self.images);
            self.pass = pass;
        }
        self.order[(number % images) as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn consecutive_samples_go_through_all_images(
            images in 1usize..20, samples_per_step in 1u64..12, first_pass in 0u64..5,
        ) {
            let mut order = ImageOrder::new(Draws::new(3), 0, images, samples_per_step);
            let start = first_pass * images as u64;
            let mut shown: Vec<usize> = (start..start + images as u64)
                .map(|g| order.image_of(g / samples_per_step + 1, (g % samples_per_step) as u32))
                .collect();
            prop_assert_eq!(&shown, &Draws::new(3).image_order(first_pass, 0, images));
            shown.sort_unstable();
            prop_assert_eq!(shown, (0..images).collect::<Vec<_>>());
        }

        #[test]
        fn the_order_of_asking_does_not_matter(step in 1u64..50, sample in 0u32..6, before in 1u64..50) {
            let mut fresh = ImageOrder::new(Draws::new(4), 0, 7, 6);
            let mut used = fresh.clone();
            used.image_of(before, 5);
            prop_assert_eq!(used.image_of(step, sample), fresh.image_of(step, sample));
        }
    }
}
