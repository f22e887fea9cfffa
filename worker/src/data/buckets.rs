//! Aspect-ratio buckets: which size a picture is trained at, instead of one square for all.
//!
//! Source: kohya's sd-scripts, library/model_util.py (make_bucket_resolutions) and library/train_util.py
//! (BucketManager); the idea is NovelAI's.

/// Options of buckets in pixels, by kohya's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketOptions {
    /// train.resolution: no bucket has more than its square.
    pub resolution: u32,
    /// The shortest side.
    pub min_bucket_reso: u32,
    /// The longest side.
    pub max_bucket_reso: u32,
    /// Sides are multiples of it; at least 1.
    pub bucket_reso_steps: u32,
    /// Pictures are only made smaller: a small one has a bucket of about its own size.
    pub bucket_no_upscale: bool,
}

/// Width and height in pixels.
pub type Size = [u32; 2];

/// Pixels of a side that a picture may be stretched to, before most of it is cut off again.
const LONGEST_SIDE: u32 = 32_768;

/// A picture's resize and centre crop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Resized size; no side shorter than the bucket's.
    pub resized: Size,
    /// Size of the crop.
    pub bucket: Size,
}

/// The buckets of a job.
#[derive(Clone, Debug)]
pub struct Buckets {
    options: BucketOptions,
    /// Sorted; empty with `bucket_no_upscale`.
    sizes: Vec<Size>,
}

impl Buckets {
    /// `options`: as a checked job has them (see `TrainSpec`).
    pub fn new(options: BucketOptions) -> Self {
        let sizes = if options.bucket_no_upscale { Vec::new() } else { sizes(options) };
        Self { options, sizes }
    }

    /// The placement of a picture of this size; None if it is smaller than the smallest bucket, or its sides differ too
    /// much.
    pub fn place(&self, size: Size) -> Option<Placement> {
        if size.contains(&0) {
            return None;
        }
        let placement = if self.options.bucket_no_upscale { self.shrunk(size) } else { self.nearest(size)? };
        let fits =
            !placement.bucket.contains(&0) && placement.resized.iter().all(|side| *side <= LONGEST_SIDE);
        fits.then_some(placement)
    }

    /// The bucket of the nearest aspect ratio; among equals the first.
    fn nearest(&self, [width, height]: Size) -> Option<Placement> {
        let ratio = f64::from(width) / f64::from(height);
        let bucket = if self.sizes.contains(&[width, height]) {
            [width, height]
        } else {
            let error = |size: &&Size| (ratio_of(**size) - ratio).abs();
            // Of equal ones min_by takes the first.
            *self.sizes.iter().min_by(|one, other| error(one).total_cmp(&error(other)))?
        };
        // The side that is too long for the bucket hangs over.
        let scale = if ratio > ratio_of(bucket) {
            f64::from(bucket[1]) / f64::from(height)
        } else {
            f64::from(bucket[0]) / f64::from(width)
        };
        let resized = [width, height].map(|side| rounded(f64::from(side) * scale));
        // Rounding may take the pixel that makes it fit.
        let resized = [resized[0].max(bucket[0]), resized[1].max(bucket[1])];
        Some(Placement { resized, bucket })
    }

    /// The picture made small enough, and the largest bucket within it.
    fn shrunk(&self, [width, height]: Size) -> Placement {
        let area = u64::from(self.options.resolution).pow(2);
        let resized = if u64::from(width) * u64::from(height) > area {
            self.shrunk_to_area([width, height], area as f64)
        } else {
            [width, height]
        };
        Placement { resized, bucket: resized.map(|side| self.in_steps(side)) }
    }

    /// Keeps the aspect ratio, with that side a multiple of the steps which leaves the ratio nearer to the picture's.
    fn shrunk_to_area(&self, [width, height]: Size, area: f64) -> Size {
        let ratio = f64::from(width) / f64::from(height);
        let exact_width = (area * ratio).sqrt();
        let exact_height = area / exact_width;
        let step_width = self.in_steps(rounded(exact_width));
        let height_of_it = self.in_steps(rounded(f64::from(step_width) / ratio));
        let step_height = self.in_steps(rounded(exact_height));
        let width_of_it = self.in_steps(rounded(f64::from(step_height) * ratio));
        let error = |size: Size| (ratio_of(size) - ratio).abs();
        if error([step_width, height_of_it]) < error([width_of_it, step_height]) {
            [step_width, rounded(f64::from(step_width) / ratio)]
        } else {
            [rounded(f64::from(step_height) * ratio), step_height]
        }
    }

    fn in_steps(&self, side: u32) -> u32 {
        side - side % self.options.bucket_reso_steps.max(1)
    }
}

/// All buckets, sorted: for each width the largest height that the area allows, and the same turned.
fn sizes(options: BucketOptions) -> Vec<Size> {
    let steps = options.bucket_reso_steps.max(1);
    let area = options.resolution.saturating_mul(options.resolution);
    let square = options.resolution - options.resolution % steps;
    let mut sizes = vec![[square, square]];
    let mut width = options.min_bucket_reso.max(1);
    while width <= options.max_bucket_reso {
        let fitting = area / width;
        let height = (fitting - fitting % steps).min(options.max_bucket_reso);
        if height >= options.min_bucket_reso.max(1) {
            sizes.extend([[width, height], [height, width]]);
        }
        width += steps;
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn ratio_of([width, height]: Size) -> f64 {
    f64::from(width) / f64::from(height)
}

/// Up from a half, as the source has it.
fn rounded(side: f64) -> u32 {
    (side + 0.5) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OPTIONS: BucketOptions = BucketOptions {
        resolution: 512,
        min_bucket_reso: 256,
        max_bucket_reso: 1024,
        bucket_reso_steps: 64,
        bucket_no_upscale: false,
    };

    #[test]
    fn a_photo_of_three_to_two_is_trained_at_576_to_448_or_so() {
        let place = |size| Buckets::new(OPTIONS).place(size);
        assert_eq!(place([512, 512]), Some(Placement { resized: [512, 512], bucket: [512, 512] }));
        assert_eq!(place([3000, 2000]), Some(Placement { resized: [640, 427], bucket: [640, 384] }));
        assert_eq!(place([2000, 3000]), Some(Placement { resized: [427, 640], bucket: [384, 640] }));
        assert_eq!(place([0, 1]), None);
        assert_eq!(place([32_768, 1]), None);
        let kept = Buckets::new(BucketOptions { bucket_no_upscale: true, ..OPTIONS });
        assert_eq!(kept.place([200, 130]), Some(Placement { resized: [200, 130], bucket: [192, 128] }));
        assert_eq!(kept.place([200, 63]), None);
    }

    proptest! {
        #[test]
        fn a_bucket_is_covered_and_keeps_to_the_limits(
            width in 1u32..5000, height in 1u32..5000, resolution in 64u32..1024, steps in 1u32..65, keep in any::<bool>(),
        ) {
            let options = BucketOptions {
                resolution,
                min_bucket_reso: resolution / 2,
                max_bucket_reso: resolution * 2,
                bucket_reso_steps: steps,
                bucket_no_upscale: keep,
            };
            if let Some(Placement { resized, bucket }) = Buckets::new(options).place([width, height]) {
                prop_assert!(bucket[0] <= resized[0] && bucket[1] <= resized[1]);
                prop_assert!(keep || bucket[0] == resized[0] || bucket[1] == resized[1]);
                prop_assert!(bucket.iter().all(|side| side % steps == 0 || (!keep && *side >= resolution / 2)));
                prop_assert!(!keep || (resized[0] <= width && resized[1] <= height) || width * height > resolution * resolution);
            }
        }
    }
}
