//! Memory of steps: constant after the first ones, and returned after a release.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod support;

use ringtune_model::{Microbatch, NO_EXTRAS, Pixels, Precision, Runtime, StableDiffusion};

/// Page faults of this process so far that needed no disk: field 10 of /proc/self/stat.
fn page_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The second field is a name in brackets.
    let fields = stat.rsplit_once(')').unwrap().1;
    fields.split_whitespace().nth(7).unwrap().parse().unwrap()
}

/// Private memory of this process, in bytes.
fn private_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// Bytes that a release may leave.
const NEARLY_NONE: u64 = 32 << 20;

/// One step of a picture of `side` latents.
fn step(model: &StableDiffusion, side: usize) {
    let info = model.info();
    let count = info.latent_channels * side * side;
    let latents: Vec<f32> = (0..count).map(|index| (index % 17) as f32 / 8.0 - 1.0).collect();
    let mut input_ids = vec![1; info.max_text_length];
    input_ids[4] = info.vocab_size as i64;
    let microbatch = Microbatch {
        batch: 1,
        latent_height: side,
        latent_width: side,
        latents: &latents,
        noise: &latents,
        timesteps: &[300],
        input_ids: &input_ids,
        rows: &model.token_row(1).unwrap(),
        snr_gamma: None,
        extras: &NO_EXTRAS,
    };
    assert!(model.gradient(&microbatch).unwrap().finite);
}

/// One test, because it measures the whole process.
#[test]
fn steps_take_no_new_memory_and_a_release_leaves_none() {
    Runtime::initialise(2).unwrap();
    // Precision of jobs that ask for bf16.
    let precision = if Runtime::info().has_bf16 { Precision::Bf16 } else { Precision::Fp32 };
    let mut model = StableDiffusion::open(&support::toy_checkpoint(), precision).unwrap();
    // 1. Large enough that most tensors, and what attention works in, have megabytes.
    (0..3).for_each(|_| step(&model, 128));
    let mut faults: Vec<u64> = (0..9)
        .map(|_| {
            let before = page_faults();
            step(&model, 128);
            page_faults() - before
        })
        .collect();
    println!("{faults:?} page faults a step");
    // One step in eight takes some hundred pages, more on a busy machine: most likely the C library's heap, which shrinks
    // and grows by small blocks. Tensors that were taken anew would cost thousands of pages in every step.
    faults.sort_unstable();
    let usual = faults[faults.len() / 2];
    assert!(usual <= 256, "{faults:?} page faults a step");
    // 2. What a picture takes is more than what the model and small steps have. In fp32 it leaves steps what they had, in bf16 it
    // makes room for packed weights.
    let before = private_bytes();
    let side = 768;
    model.encode_image(&Pixels { height: side, width: side, data: vec![0.5; 3 * side * side] }).unwrap();
    let with_picture = private_bytes();
    model.drop_vae();
    let between = private_bytes();
    assert!(between <= with_picture, "{between} and {with_picture} bytes");
    let as_is_right = match precision {
        Precision::Fp32 => between >= before,
        Precision::Bf16 => between <= before + NEARLY_NONE,
    };
    assert!(as_is_right, "{before} bytes before the picture, {between} after it");
    // 3. A release leaves neither what steps had nor what a picture took.
    Runtime::release_memory().unwrap();
    let after = private_bytes();
    println!("{before} bytes, with a picture {with_picture}, after it {between}, released {after}");
    assert!(after <= before + NEARLY_NONE, "{before} bytes before the picture, {after} after a release");
}
