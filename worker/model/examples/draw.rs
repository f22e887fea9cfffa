//! Times how long a checkpoint takes to draw a picture: one JSON line a picture.
//!
//! usage: draw CHECKPOINT [--resolution 512] [--pictures 2] [--steps 25] [--guidance 7.5] [--threads 0]
//!     [--precision bf16]
//!
//! The prompt and the noise are made up; `--threads 0` means one per core. The sampler is DDIM, and the first picture
//! also loads the decoder and packs the weights.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use ringtune_model::{Error, GenerateRequest, Precision, Runtime, SamplerKind, StableDiffusion};

struct Options {
    checkpoint: std::path::PathBuf,
    resolution: usize,
    pictures: usize,
    steps: usize,
    guidance: f64,
    threads: usize,
    precision: Precision,
}

fn parse_options() -> Result<Options, String> {
    let mut arguments = std::env::args().skip(1);
    let mut options = Options {
        checkpoint: arguments.next().ok_or("usage: draw CHECKPOINT [--resolution N] …")?.into(),
        resolution: 512,
        pictures: 2,
        steps: 25,
        guidance: 7.5,
        threads: 0,
        precision: Precision::Bf16,
    };
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(format!("{name} needs a value"))?;
        let wrong = |error: &dyn std::fmt::Display| format!("{name} {value}: {error}");
        let number = || value.parse::<usize>().map_err(|error| wrong(&error));
        match name.as_str() {
            "--resolution" => options.resolution = number()?,
            "--pictures" => options.pictures = number()?,
            "--steps" => options.steps = number()?,
            "--guidance" => options.guidance = value.parse().map_err(|error| wrong(&error))?,
            "--threads" => options.threads = number()?,
            "--precision" => {
                options.precision = match value.as_str() {
                    "bf16" => Precision::Bf16,
                    "fp32" | "no" => Precision::Fp32,
                    _ => return Err(wrong(&"allowed is bf16 or fp32")),
                }
            }
            other => return Err(format!("unknown option {other}")),
        }
    }
    if options.threads == 0 {
        options.threads = std::thread::available_parallelism().map_or(1, usize::from);
    }
    Ok(options)
}

/// Values with mean 0 and variance 1 that depend on their place alone (the sum of twelve uniforms).
fn noise(count: usize) -> Vec<f32> {
    let mut state = 14u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

fn run(options: &Options) -> Result<(), Error> {
    Runtime::initialise(options.threads)?;
    let mut model = StableDiffusion::open(&options.checkpoint, options.precision)?;
    let info = model.info();
    let side = options.resolution / info.vae_factor;
    let noise = noise(info.latent_channels * side * side);
    let ids =
        |step: i64| -> Vec<i64> { (0..info.max_text_length as i64).map(|i| i * step % 40000).collect() };
    for picture in 1..=options.pictures {
        let started = Instant::now();
        let mut denoised = 0.0;
        let request = GenerateRequest {
            batch: 1,
            height: options.resolution,
            width: options.resolution,
            prompt_ids: &ids(37),
            negative_ids: &ids(0),
            rows: &[],
            sampler: SamplerKind::Ddim,
            steps: options.steps,
            guidance: options.guidance,
            noise: &noise,
            step_noise: &[],
        };
        model.generate(&request, |_, _| {
            denoised = started.elapsed().as_secs_f64();
            true
        })?;
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "{{\"picture\": {picture}, \"denoise_seconds\": {denoised:.3}, \"decode_seconds\": {:.3}, \
             \"picture_seconds\": {seconds:.3}}}",
            seconds - denoised
        );
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    let outcome = parse_options().and_then(|options| run(&options).map_err(|error| error.to_string()));
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(message) => {
            println!("{{\"error\": {message:?}}}");
            std::process::ExitCode::FAILURE
        }
    }
}
