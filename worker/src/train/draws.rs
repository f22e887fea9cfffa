//! Everything random in a job, as a pure function of (seed, purpose, step, sample).
//!
//! No generator has a state, so any worker can make any sample's draws at any time, and a job's numbers do not
//! depend on who computes what. **The layout is fixed**: another implementation that follows it gets the same bits.
//!
//! - A stream is a sequence of words w\[0\], w\[1\], … (`ringtune_random`).
//!   Purposes: 1 flip, 2 template, 3 timestep, 4 noise, 5 latent, 6 image order (its step is the pass, its sample 0, of the class's images 1),
//!   7 generated pictures (its step is 0, its sample the picture's number), 8 noise offset,
//!   9 caption, 10 tag order, 11 order in a bucket (its step is the pass, its sample the bucket's number), 12 order of
//!   the buckets' microbatches (its step is the pass, its sample 0), 13 to 15 held-out samples (their step is 0):
//!   13 flip, template and timestep, 14 noise, 15 latent, 20 one of several captions (its
//!   step is 0 for a held-out sample). (16 is a place in a file of tokens: `worker/text/src/sampling.rs`; 17 the first weights
//!   of a language model: `worker/model/src/gpt2/initial.rs`; 18 and 19: `shared/random/src/stream.rs`; 21 the first factors
//!   of adapters: `worker/model/src/lora.rs`; 22 those of a UNet: `worker/model/src/whole_unet.rs`; 23 more noise; 24 a synthetic
//!   picture (its step is 0, its sample the picture's number), and 25 its prompt: `worker/src/data/drawn.rs`.)
//! - A flip is the highest bit of w\[0\].
//! - A number below n takes 64 bits x at a time (w\[2j\] the low half, w\[2j+1\] the high) and is the high half of
//!   the 128-bit product x·n; while the low half is below 2^64 mod n, the next x is taken instead (Lemire 2019).
//! - Normals come in pairs (Box-Muller), in 64-bit floating point, rounded to 32: with u = (w\[2j\] + 0.5)·2^-32,
//!   v = w\[2j+1\]·2^-32 and r = sqrt(-2 ln u): r·cos(2πv), r·sin(2πv). ln, cos and sin are musl's (crate libm), not
//!   the system's, whose last bits differ.
//! - A share is w\[0\]·2^-32.
//! - The order of N images in a pass, or of N tags: 0..N, then for i = N-1 down to 1 swap i with a number below i + 1, all from
//!   one stream.

use std::{f64::consts::TAU, ops::Range};

use ringtune_random::{Stream, StreamName};

/// What a draw is for: each purpose is a stream of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Flip = 1,
    Template = 2,
    Timestep = 3,
    Noise = 4,
    Latent = 5,
    ImageOrder = 6,
    Picture = 7,
    NoiseOffset = 8,
    HeldOut = 13,
    HeldOutNoise = 14,
    HeldOutLatent = 15,
    Caption = 9,
    TagOrder = 10,
    BucketOrder = 11,
    MicrobatchOrder = 12,
    CaptionChoice = 20,
    Perturbation = 23,
    SyntheticPicture = 24,
}

/// 2^-32.
const UNIT: f64 = 1.0 / 4_294_967_296.0;

/// All draws of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draws {
    seed: u64,
}

impl Draws {
    /// `seed`: train.seed.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Whether the sample's image is mirrored: true half of the time.
    pub fn flip(&self, step: u64, sample: u32) -> bool {
        flips(&mut self.stream(Purpose::Flip, step, sample))
    }

    /// The sample's prompt template: below `count`, which is at least 1.
    pub fn template(&self, step: u64, sample: u32, count: usize) -> usize {
        self.stream(Purpose::Template, step, sample).below(count as u64) as usize
    }

    /// The sample's timestep: one of `allowed`, which has at least one.
    pub fn timestep(&self, step: u64, sample: u32, allowed: Range<usize>) -> i64 {
        let drawn = self.stream(Purpose::Timestep, step, sample).below(allowed.len() as u64);
        (allowed.start as u64 + drawn) as i64
    }

    /// A picture that no file has: standard normals.
    pub fn synthetic_picture(&self, number: u32, length: usize) -> Vec<f32> {
        self.stream(Purpose::SyntheticPicture, 0, number).normals(length)
    }

    /// The noise that is added to the sample's latent: standard normals.
    pub fn noise(&self, step: u64, sample: u32, length: usize) -> Vec<f32> {
        self.stream(Purpose::Noise, step, sample).normals(length)
    }

    /// More noise for a sample's latents, standard normal.
    pub fn perturbation(&self, step: u64, sample: u32, length: usize) -> Vec<f32> {
        self.stream(Purpose::Perturbation, step, sample).normals(length)
    }

    /// What train.noise_offset is multiplied with: a standard normal for each of the sample's channels.
    pub fn noise_offset(&self, step: u64, sample: u32, channels: usize) -> Vec<f32> {
        self.stream(Purpose::NoiseOffset, step, sample).normals(channels)
    }

    /// The draw from the posterior of the sample's image: standard normals.
    pub fn latent(&self, step: u64, sample: u32, length: usize) -> Vec<f32> {
        self.stream(Purpose::Latent, step, sample).normals(length)
    }

    /// The order in which pass `pass` (from 0) shows `count` images: a permutation of 0..count. `stream`: 0, or 1 of the class's.
    pub fn image_order(&self, pass: u64, stream: u32, count: usize) -> Vec<usize> {
        self.stream(Purpose::ImageOrder, pass, stream).order(count)
    }

    /// What train.caption_dropout is compared with: a share, from 0 up to, but not, 1.
    pub fn caption(&self, step: u64, sample: u32) -> f64 {
        f64::from(self.stream(Purpose::Caption, step, sample).word()) * UNIT
    }

    /// The sample's caption among the `count` (at least 1) of its picture; step 0: of a held-out sample.
    pub fn caption_choice(&self, step: u64, sample: u32, count: usize) -> usize {
        self.stream(Purpose::CaptionChoice, step, sample).below(count as u64) as usize
    }

    /// The order of `count` of the tags of the sample's caption: a permutation of 0..count.
    pub fn tag_order(&self, step: u64, sample: u32, count: usize) -> Vec<usize> {
        self.stream(Purpose::TagOrder, step, sample).order(count)
    }

    /// The order in which pass `pass` (from 0) shows the `count` images of bucket number `bucket`.
    pub fn bucket_order(&self, pass: u64, bucket: u32, count: usize) -> Vec<usize> {
        self.stream(Purpose::BucketOrder, pass, bucket).order(count)
    }

    /// The order of pass `pass`'s `count` microbatches, where they are of several buckets.
    pub fn microbatch_order(&self, pass: u64, count: usize) -> Vec<usize> {
        self.stream(Purpose::MicrobatchOrder, pass, 0).order(count)
    }

    /// The noise that generated picture number `picture` (from 0) starts from: standard normals.
    pub fn picture_noise(&self, picture: u32, length: usize) -> Vec<f32> {
        self.stream(Purpose::Picture, 0, picture).normals(length)
    }

    /// What held-out sample `sample` (from 0, of `samples`) shows, for `templates` prompts (at least 1).
    ///
    /// Its timestep is drawn from the sample's own share of those that are `allowed` (at least one), so that all of them
    /// together cover every level of noise evenly.
    pub fn held_out(
        &self,
        sample: u32,
        samples: u32,
        templates: usize,
        allowed: Range<usize>,
    ) -> HeldOutDraw {
        let mut stream = self.stream(Purpose::HeldOut, 0, sample);
        let flip = flips(&mut stream);
        let within = f64::from(stream.word()) / 4_294_967_296.0;
        let place = (f64::from(sample) + within) / f64::from(samples.max(1));
        let last = allowed.len().saturating_sub(1) as i64;
        let timestep = allowed.start as i64 + ((place * allowed.len() as f64) as i64).min(last);
        HeldOutDraw { flip, timestep, template: stream.below(templates as u64) as usize }
    }

    /// [`HeldOutDraw::flip`] of a held-out sample, which the number of samples does not change.
    pub fn held_out_flip(&self, sample: u32) -> bool {
        flips(&mut self.stream(Purpose::HeldOut, 0, sample))
    }

    /// The noise of a held-out sample: standard normals.
    pub fn held_out_noise(&self, sample: u32, length: usize) -> Vec<f32> {
        self.stream(Purpose::HeldOutNoise, 0, sample).normals(length)
    }

    /// The draw from the posterior of a held-out sample's image: standard normals.
    pub fn held_out_latent(&self, sample: u32, length: usize) -> Vec<f32> {
        self.stream(Purpose::HeldOutLatent, 0, sample).normals(length)
    }

    fn stream(&self, purpose: Purpose, step: u64, sample: u32) -> Stream {
        Stream::new(StreamName { seed: self.seed, purpose: purpose as u8, step, sample })
    }
}

/// True for half of all first words.
fn flips(stream: &mut Stream) -> bool {
    stream.word() >> 31 == 1
}

/// What a held-out sample shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldOutDraw {
    /// Whether its image is mirrored.
    pub flip: bool,
    /// Its level of noise.
    pub timestep: i64,
    /// Its prompt.
    pub template: usize,
}

/// What a stream's words become.
trait Drawn {
    /// A permutation of 0..count.
    fn order(&mut self, count: usize) -> Vec<usize>;
    /// Standard normals.
    fn normals(&mut self, length: usize) -> Vec<f32>;
}

impl Drawn for Stream {
    fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, self.below(last as u64 + 1) as usize);
        }
        order
    }

    fn normals(&mut self, length: usize) -> Vec<f32> {
        let mut normals = Vec::with_capacity(length + 1);
        while normals.len() < length {
            let u = (f64::from(self.word()) + 0.5) * UNIT;
            let angle = f64::from(self.word()) * UNIT * TAU;
            let radius = libm::sqrt(-2.0 * libm::log(u));
            normals.push((radius * libm::cos(angle)) as f32);
            normals.push((radius * libm::sin(angle)) as f32);
        }
        normals.truncate(length);
        normals
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// These numbers never change: a job of an older version has to come out the same. They were made by another
    /// implementation (in Python) of the layout above.
    #[test]
    fn frozen_bits() {
        let draws = Draws::new(0x0123_4567_89ab_cdef);
        let bits = |normals: Vec<f32>| normals.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!((0..16).map(|i| u32::from(draws.flip(1, i)) << i).sum::<u32>(), 0x9b4a);
        assert_eq!(
            (0..8).map(|i| draws.template(2, i, 27)).collect::<Vec<_>>(),
            [4, 24, 20, 14, 18, 12, 7, 14]
        );
        assert_eq!(
            (0..8).map(|i| draws.timestep(3, i, 0..1000)).collect::<Vec<_>>(),
            [672, 708, 236, 586, 221, 460, 539, 286]
        );
        let noise = [0x3d95_ed68, 0xbe65_7e42, 0xbee5_4233, 0x3e26_6f00, 0x3eea_61be];
        assert_eq!(bits(draws.noise(4, 5, 5)), noise);
        assert_eq!(bits(draws.latent(1 << 40, u32::MAX, 3)), [0xbf17_b3bb, 0x3e87_27ff, 0xbfb1_a679]);
        assert_eq!(bits(draws.picture_noise(1, 2)), [0x3fc8_0eb7, 0xbf1c_3275]);
        let offset = [0xbfa5_f30c, 0xbe5a_1162, 0x3e8e_8abd, 0x3eea_f407];
        assert_eq!(bits(draws.noise_offset(4, 5, 4)), offset);
        assert_eq!(draws.image_order(7, 0, 10), [0, 9, 1, 5, 8, 4, 3, 2, 7, 6]);
        let held_out = [(true, 169, 11), (true, 295, 2), (false, 545, 22), (true, 761, 9), (false, 908, 13)]
            .map(|(flip, timestep, template)| HeldOutDraw { flip, timestep, template });
        assert_eq!([0, 1, 2, 3, 4].map(|i| draws.held_out(i, 5, 27, 0..1000)), held_out);
        assert_eq!([0, 1, 2, 3, 4].map(|i| draws.held_out_flip(i)), held_out.map(|draw| draw.flip));
        assert_eq!(bits(draws.held_out_noise(3, 3)), [0x3e5f_b4ce, 0x3d95_bc20, 0x3ec7_b6ee]);
        assert_eq!(bits(draws.held_out_latent(3, 3)), [0xbfb4_d18b, 0xbec7_6417, 0xbecb_5122]);
        assert_eq!(draws.bucket_order(7, 2, 6), [5, 0, 1, 2, 3, 4]);
        assert_eq!(draws.microbatch_order(7, 7), [6, 2, 3, 1, 4, 5, 0]);
        assert_eq!(draws.tag_order(4, 5, 6), [1, 2, 5, 4, 3, 0]);
        assert_eq!(draws.caption(4, 5), 0.45489872549660504);
        let choices = [4, 2, 4, 3, 2, 1, 2, 1];
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(|i| draws.caption_choice(2, i, 5)), choices);
    }

    #[test]
    fn every_purpose_step_and_sample_has_its_own_stream() {
        let mut seen = BTreeSet::new();
        for seed in [0, 1, 1 << 32] {
            for purpose in
                [Purpose::Flip, Purpose::Noise, Purpose::ImageOrder, Purpose::HeldOut, Purpose::HeldOutNoise]
            {
                for step in [0, 1, 2, 1 << 32, 1 << 55] {
                    for sample in [0, 1, u32::MAX] {
                        let mut stream = Draws::new(seed).stream(purpose, step, sample);
                        seen.insert([(); 5].map(|()| stream.word()));
                    }
                }
            }
        }
        assert_eq!(seen.len(), 3 * 5 * 5 * 3);
    }

    #[test]
    fn longer_draws_begin_with_the_shorter_ones() {
        let draws = Draws::new(5);
        let long = draws.noise(1, 2, 1001);
        for length in [0, 1, 2, 3, 4, 1000] {
            assert_eq!(draws.noise(1, 2, length), long[..length]);
        }
    }

    #[test]
    fn normals_have_the_moments_of_normals() {
        let draws = Draws::new(9);
        let values: Vec<f64> = (0..64).flat_map(|i| draws.noise(1, i, 4096)).map(f64::from).collect();
        let n = values.len() as f64;
        let moment = |power: i32| values.iter().map(|value| value.powi(power)).sum::<f64>() / n;
        // Five standard errors of each moment's estimate.
        for (power, expected, deviation) in
            [(1, 0.0, 1.0), (2, 1.0, 2.0f64.sqrt()), (3, 0.0, 15.0f64.sqrt()), (4, 3.0, 96.0f64.sqrt())]
        {
            let error = (moment(power) - expected).abs();
            assert!(error < 5.0 * deviation / n.sqrt(), "moment {power} is off by {error}");
        }
        let beyond = values.iter().filter(|value| value.abs() > 1.959_964).count() as f64 / n;
        assert!((beyond - 0.05).abs() < 0.003, "{beyond}");
        // The two of a pair, and neighbouring samples, do not go together.
        let together = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>() / (a.len() as f64).sqrt()
        };
        let (one, two) = (draws.noise(1, 0, 1 << 16), draws.noise(1, 1, 1 << 16));
        assert!(together(&one, &two).abs() < 5.0);
        assert!(together(&one, &one[1..]).abs() < 5.0);
        assert!(together(&one, &draws.latent(1, 0, 1 << 16)).abs() < 5.0);
    }

    #[test]
    fn flips_templates_and_timesteps_are_even() {
        let draws = Draws::new(11);
        let samples = 40_000u32;
        let flips = (0..samples).filter(|i| draws.flip(3, *i)).count() as f64;
        assert!((flips - 20_000.0).abs() < 5.0 * 100.0, "{flips}");
        let mut counts = [0f64; 27];
        (0..samples).for_each(|i| counts[draws.template(3, i, 27)] += 1.0);
        let expected = f64::from(samples) / 27.0;
        let chi_squared: f64 = counts.iter().map(|count| (count - expected).powi(2) / expected).sum();
        // 26 degrees of freedom: mean 26, standard deviation 7.2.
        assert!(chi_squared < 26.0 + 5.0 * 7.2, "{chi_squared}");
        let timesteps: BTreeSet<i64> = (0..samples).map(|i| draws.timestep(3, i, 0..1000)).collect();
        assert_eq!((timesteps.len(), timesteps.first(), timesteps.last()), (1000, Some(&0), Some(&999)));
        let late: BTreeSet<i64> = (0..samples).map(|i| draws.timestep(3, i, 990..1000)).collect();
        assert_eq!(late.into_iter().collect::<Vec<_>>(), (990..1000).collect::<Vec<_>>());
        let late = [0, 1, 2].map(|i| draws.held_out(i, 3, 1, 997..1000).timestep);
        assert_eq!(late, [997, 998, 999]);
    }

    #[test]
    fn all_orders_of_three_images_are_equally_likely() {
        let draws = Draws::new(13);
        let mut counts = std::collections::BTreeMap::new();
        (0..6000).for_each(|pass| *counts.entry(draws.image_order(pass, 0, 3)).or_insert(0.0) += 1.0);
        assert_eq!(counts.len(), 6);
        let chi_squared: f64 = counts.values().map(|count: &f64| (count - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi_squared < 5.0 + 5.0 * 3.2, "{chi_squared}");
    }

    proptest! {
        #[test]
        fn a_pass_shows_every_image_once(seed in any::<u64>(), pass in any::<u32>(), count in 0usize..200) {
            let mut order = Draws::new(seed).image_order(u64::from(pass), 0, count);
            order.sort_unstable();
            prop_assert_eq!(order, (0..count).collect::<Vec<_>>());
        }

        #[test]
        fn numbers_stay_below_their_bound(seed in any::<u64>(), step in any::<u64>(), bound in 1u64..=u64::MAX) {
            let mut stream = Draws::new(seed).stream(Purpose::Timestep, step, 0);
            prop_assert!((0..8).all(|_| stream.below(bound) < bound));
        }
    }
}
