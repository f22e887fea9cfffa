//! Weights that are laid out ahead of a gradient.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use ringtune_engine::{Gradient, Precision};

use crate::packed_weights::PACKED;
use crate::support::golden_folder;
use crate::{Microbatch, NO_EXTRAS, Runtime, StableDiffusion};

/// A gradient of zeros.
fn gradient(model: &StableDiffusion, batch: usize, [height, width]: [usize; 2]) -> Gradient {
    let info = model.info();
    let values = vec![0.0; batch * info.latent_channels * height * width];
    let mut input_ids = vec![1; batch * info.max_text_length];
    input_ids[4] = info.vocab_size as i64;
    let microbatch = Microbatch {
        batch,
        latent_height: height,
        latent_width: width,
        latents: &values,
        noise: &values,
        timesteps: &vec![300; batch],
        input_ids: &input_ids,
        rows: &vec![0.5; info.text_width],
        snr_gamma: None,
        extras: &NO_EXTRAS,
    };
    model.gradient(&microbatch).unwrap()
}

/// Number of packings by this thread during `work`.
fn packed(work: impl FnOnce()) -> usize {
    let before = PACKED.get();
    work();
    PACKED.get() - before
}

#[test]
fn what_a_gradient_would_pack_is_laid_out_ahead_of_it_and_nothing_else() {
    Runtime::initialise(2).unwrap();
    if !Runtime::info().has_bf16 {
        eprintln!("skipped: nothing is packed without AVX-512 BF16");
        return;
    }
    for name in ["tiny15", "tiny2"] {
        let open = |precision| StableDiffusion::open(&golden_folder().join(name), precision).unwrap();
        // Sides that halve evenly, and sides that do not, where growing has other weights.
        for (batch, size) in [(1, [16, 16]), (2, [8, 24]), (1, [9, 19])] {
            let mut alone = None;
            let lazily = packed(|| alone = Some(gradient(&open(Precision::Bf16), batch, size)));
            let model = open(Precision::Bf16);
            let ahead = packed(|| model.lay_out(batch, size[0], size[1]).unwrap());
            assert!(lazily > 50, "{lazily}");
            assert_eq!(ahead, lazily, "{name}, {batch} of {size:?}");
            let mut laid_out = None;
            assert_eq!(packed(|| laid_out = Some(gradient(&model, batch, size))), 0);
            assert_eq!(laid_out.unwrap().grad, alone.unwrap().grad, "{name}, {batch} of {size:?}");
            assert_eq!(packed(|| model.lay_out(batch, size[0], size[1]).unwrap()), 0);
        }
        let model = open(Precision::Fp32);
        assert_eq!(packed(|| model.lay_out(1, 16, 16).unwrap()), 0);
        for (batch, height, width) in [(0, 16, 16), (1, 0, 16), (1, 16, 2049), (4097, 16, 16)] {
            assert!(model.lay_out(batch, height, width).is_err());
        }
    }
}
