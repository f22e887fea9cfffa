//! Which numbers a pass drops: nanoGPT's model.py, `dropout`; transformers' `embd_pdrop`, `attn_pdrop` and `resid_pdrop`; PEFT's
//! `lora_dropout`, and kohya's `rank_dropout`.
//!
//! Each mask has a name: the words that the stream of (seed, purpose, step, sample) has in a block, that is Philox4x32-10 of
//! key = (seed's low word, seed's high word) and counter = (block, sample, step's low word, step's next 24 bits | purpose << 24).
//! Of GPT-2's masks the purpose is 19 and the block 4 layer + site; of adapters' the purpose is 22 and the block 2 layer, of their
//! rows 2 layer + 1. Which numbers a name keeps is in csrc/dropout.h. **The layout is fixed**:
//! masks are the same for any number of ranks and threads, and whenever they are made; so the way back makes them again,
//! and nothing of them is kept.

use ringtune_engine::Dropout;
use ringtune_random::philox4x32;
use tch::Tensor;
use torch_sys::C_tensor;

use crate::error::{Error, Result};
use crate::native::done;

unsafe extern "C" {
    fn ringtune_language_drop(x: *mut C_tensor, mask: *const RawMask) -> bool;
}

/// The purpose of these draws among all of a job's.
const PURPOSE: u32 = 19;
/// That of adapters'.
const ADAPTERS: u32 = 22;
/// 2^32: one more than the greatest word.
const WORDS: f64 = 4_294_967_296.0;

/// What a layer drops of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    /// The sums of both tables; layer 0 alone. Rows are tokens.
    Embedding = 0,
    /// Attention's probabilities. Rows are queries: head * tokens + query.
    Attention = 1,
    /// What attention adds to the residual stream. Rows are tokens.
    Projection = 2,
    /// What the feed-forward layers add to it. Rows are tokens.
    FeedForward = 3,
}

/// What is kept of one site's numbers, in every sample of a microbatch.
#[derive(Clone, Debug)]
pub(crate) struct Mask {
    names: Vec<[u32; 4]>,
    /// The least word that is kept.
    least: u32,
    /// 1 / (1 - rate).
    scale: f32,
}

/// csrc/dropout.h has the same. Its pointer is the mask's.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RawMask {
    names: *const [u32; 4],
    samples: i64,
    least: u32,
    scale: f32,
}

impl Mask {
    /// For a call that ends before the mask does.
    pub(crate) fn raw(&self) -> RawMask {
        RawMask {
            names: self.names.as_ptr(),
            samples: self.names.len() as i64,
            least: self.least,
            scale: self.scale,
        }
    }
}

/// The masks of one microbatch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Masks {
    dropout: Dropout,
    samples: u32,
}

impl Masks {
    /// Those of a microbatch of `samples` texts; none where nothing is dropped.
    ///
    /// # Errors
    /// A rate that is none.
    pub(crate) fn new(dropout: Option<Dropout>, samples: usize) -> Result<Option<Self>> {
        let Some(dropout) = dropout else { return Ok(None) };
        if !(0.0..1.0).contains(&dropout.rate) {
            return Err(Error::argument("dropout.rate", dropout.rate, "0 up to, but not, 1"));
        }
        let last = u32::try_from(samples).ok().and_then(|count| dropout.first_sample.checked_add(count));
        if last.is_none() {
            let allowed = format!(
                "at most {}, for {samples} texts",
                u32::MAX as usize - samples.min(u32::MAX as usize)
            );
            return Err(Error::argument("dropout.first_sample", dropout.first_sample, allowed));
        }
        Ok((dropout.rate > 0.0).then_some(Masks { dropout, samples: samples as u32 }))
    }

    /// That of one site; `layer` counts from 0.
    pub(crate) fn of(&self, site: Site, layer: usize) -> Mask {
        self.named(PURPOSE, layer as u32 * 4 + site as u32)
    }

    /// That of an adapter's input, or of its rows.
    pub(crate) fn of_adapter(&self, layer: usize, rows: bool) -> Mask {
        self.named(ADAPTERS, layer as u32 * 2 + u32::from(rows))
    }

    fn named(&self, purpose: u32, place: u32) -> Mask {
        let Dropout { rate, seed, step, first_sample } = self.dropout;
        let key = [seed as u32, (seed >> 32) as u32];
        let high = ((step >> 32) as u32 & 0x00ff_ffff) | purpose << 24;
        let name = |sample| philox4x32(key, [place, first_sample + sample, step as u32, high]);
        Mask {
            names: (0..self.samples).map(name).collect(),
            least: (rate * WORDS) as u32,
            scale: (1.0 / (1.0 - rate)) as f32,
        }
    }
}

/// `x` [samples * tokens, width], an activation, times what `mask` says, in place; a token is a row.
pub(crate) fn drop(x: &mut Tensor, mask: &Mask) -> Result<()> {
    let raw = mask.raw();
    // SAFETY: a live tensor that is lent to be written, and a mask that lives longer than the call.
    done(unsafe { ringtune_language_drop(x.as_mut_ptr(), &raw) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::BTreeSet;

    use tch::Kind;

    use super::*;
    use crate::Runtime;
    use crate::stable_diffusion::to_vec;

    const SITES: [Site; 4] = [Site::Embedding, Site::Attention, Site::Projection, Site::FeedForward];
    const DROPOUT: Dropout = Dropout { rate: 0.3, seed: 7 << 40 | 5, step: 3 << 33 | 9, first_sample: 6 };

    fn masks(dropout: Dropout, samples: usize) -> Masks {
        Masks::new(Some(dropout), samples).unwrap().unwrap()
    }

    /// Factors of whole rows, by the kernel.
    fn factors(mask: &Mask, tokens: usize, width: usize, kind: Kind) -> Vec<f32> {
        Runtime::initialise(2).unwrap();
        let shape = [(mask.names.len() * tokens) as i64, width as i64];
        let mut ones = Tensor::ones(shape, (kind, tch::Device::Cpu));
        drop(&mut ones, mask).unwrap();
        to_vec(&ones).unwrap()
    }

    /// The same, word by word, as this file and csrc/dropout.h have it.
    fn restated(dropout: Dropout, samples: u32, place: u32, tokens: u32, width: u32) -> Vec<f32> {
        let mut all = Vec::new();
        for (sample, row) in (0..samples).flat_map(|sample| (0..tokens).map(move |row| (sample, row))) {
            let high = (dropout.step >> 32) as u32 | 19 << 24;
            let counter = [place, dropout.first_sample + sample, dropout.step as u32, high];
            let name = philox4x32([dropout.seed as u32, (dropout.seed >> 32) as u32], counter);
            for number in 0..width {
                let words = philox4x32([name[0], name[1]], [number / 4, row, name[2], name[3]]);
                let word = f64::from(words[number as usize % 4]);
                let kept = word >= (dropout.rate * 4_294_967_296.0).floor();
                all.push(if kept { (1.0 / (1.0 - dropout.rate)) as f32 } else { 0.0 });
            }
        }
        all
    }

    #[test]
    fn the_kernel_keeps_what_the_words_say() {
        for (number, width) in [1usize, 3, 4, 15, 16, 17, 31, 32, 33, 64, 77, 130].into_iter().enumerate() {
            let (site, layer) = (SITES[number % 4], number / 2);
            let made = factors(&masks(DROPOUT, 3).of(site, layer), 5, width, Kind::Float);
            let place = (4 * layer + site as usize) as u32;
            assert!(made == restated(DROPOUT, 3, place, 5, width as u32), "width {width}");
        }
        let mask = masks(Dropout { rate: 0.5, ..DROPOUT }, 2).of(Site::Projection, 1);
        assert!(factors(&mask, 9, 40, Kind::Float) == factors(&mask, 9, 40, Kind::BFloat16));
    }

    #[test]
    fn so_many_are_kept_and_masks_have_nothing_to_do_with_each_other() {
        let kept = |dropout: Dropout, site, layer| -> Vec<bool> {
            let made = factors(&masks(dropout, 4).of(site, layer), 250, 100, Kind::Float);
            made.into_iter().map(|factor| factor > 0.0).collect()
        };
        let share = |kept: &[bool]| kept.iter().filter(|one| **one).count() as f64 / kept.len() as f64;
        for rate in [1e-3, 0.1, 0.2, 0.5, 0.9, 0.999] {
            let found = share(&kept(Dropout { rate, ..DROPOUT }, Site::Attention, 2));
            let deviation = (rate * (1.0 - rate) / 100_000.0).sqrt();
            assert!((found - (1.0 - rate)).abs() < 4.5 * deviation, "{rate}: {found}");
        }
        // Every pair of masks, and each with itself moved on by some numbers, agrees as often as chance has it.
        let other = [
            Dropout { seed: DROPOUT.seed + 1, ..DROPOUT },
            Dropout { step: DROPOUT.step + 1, ..DROPOUT },
            Dropout { step: 9, ..DROPOUT },
            Dropout { seed: 5, ..DROPOUT },
            Dropout { first_sample: 100, ..DROPOUT },
        ];
        let mut all: Vec<Vec<bool>> = other.into_iter().map(|one| kept(one, Site::Attention, 2)).collect();
        all.extend(SITES.into_iter().flat_map(|site| (0..3).map(move |layer| kept(DROPOUT, site, layer))));
        let expected = 0.7 * 0.7 + 0.3 * 0.3;
        let check = |one: &[bool], other: &[bool], what: String| {
            let same: Vec<bool> = one.iter().zip(other).map(|(one, other)| one == other).collect();
            let deviation = (expected * (1.0 - expected) / same.len() as f64).sqrt();
            assert!((share(&same) - expected).abs() < 5.0 * deviation, "{what}: {}", share(&same));
        };
        for (number, one) in all.iter().enumerate() {
            for (place, other) in all[..number].iter().enumerate() {
                check(one, other, format!("{number} and {place}"));
            }
            // A number, a word, a block, a row, and a sample.
            for far in [1, 4, 16, 100, 25_000] {
                check(one, &one[far..], format!("{number} moved by {far}"));
            }
        }
    }

    #[test]
    fn no_two_masks_of_a_step_have_one_name() {
        let masks = masks(DROPOUT, 100);
        let places = SITES.into_iter().flat_map(|site| (0..50).map(move |layer| (site, layer)));
        let names: BTreeSet<[u32; 4]> =
            places.flat_map(|(site, layer)| masks.of(site, layer).names).collect();
        assert_eq!(names.len(), 4 * 50 * 100);
        // A sample's name does not depend on which microbatch it is in.
        let moved = self::masks(Dropout { first_sample: 40, ..DROPOUT }, 10).of(Site::Projection, 3);
        assert_eq!(moved.names, masks.of(Site::Projection, 3).names[34..44]);
    }

    #[test]
    fn rates_that_are_none_are_refused_by_their_name() {
        for rate in [-0.1, 1.0, f64::NAN, f64::INFINITY] {
            let refused = Masks::new(Some(Dropout { rate, ..DROPOUT }), 1).unwrap_err().to_string();
            assert!(refused.contains("dropout.rate") && refused.contains("0 up to, but not, 1"), "{refused}");
        }
        assert!(Masks::new(None, 1).unwrap().is_none());
        assert!(Masks::new(Some(Dropout { rate: 0.0, ..DROPOUT }), 1).unwrap().is_none());
        let last = Dropout { first_sample: u32::MAX, ..DROPOUT };
        assert!(Masks::new(Some(last), 1).unwrap_err().to_string().contains("dropout.first_sample"));
    }
}
