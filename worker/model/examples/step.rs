//! Times the textual-inversion step of a checkpoint: one JSON line a step, then the peak private memory.
//!
//! usage: step CHECKPOINT [--resolution 512] [--batch 1] [--steps 4] [--precision bf16] [--threads 0] [--encode 0]
//!     [--concepts 1]
//!
//! Latents and noise are made up; `--threads 0` means one per core; `--encode N` first encodes N made-up pictures,
//! as a job does before its first step. `--concepts N` takes every step of one concept and one of N concepts in turn,
//! and prints the ratio of their median times at the end (the first step of each, which warms up, is left out).
#![allow(clippy::print_stdout)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringtune_model::{Error, Microbatch, Pixels, Precision, Runtime, StableDiffusion};

struct Options {
    checkpoint: PathBuf,
    resolution: usize,
    batch: usize,
    steps: usize,
    precision: Precision,
    threads: usize,
    encode: usize,
    concepts: usize,
}

fn parse_options() -> Result<Options, String> {
    let mut options = Options {
        checkpoint: PathBuf::new(),
        resolution: 512,
        batch: 1,
        steps: 4,
        precision: Precision::Bf16,
        threads: 0,
        encode: 0,
        concepts: 1,
    };
    let mut arguments = std::env::args().skip(1);
    options.checkpoint = arguments.next().ok_or("usage: step CHECKPOINT [--resolution N] …")?.into();
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(format!("{name} needs a value"))?;
        let number = || value.parse::<usize>().map_err(|error| format!("{name} {value}: {error}"));
        match name.as_str() {
            "--resolution" => options.resolution = number()?,
            "--batch" => options.batch = number()?,
            "--steps" => options.steps = number()?,
            "--threads" => options.threads = number()?,
            "--encode" => options.encode = number()?,
            "--concepts" => options.concepts = number()?.max(1),
            "--precision" => {
                options.precision = match value.as_str() {
                    "bf16" => Precision::Bf16,
                    "fp32" | "no" => Precision::Fp32,
                    other => return Err(format!("--precision {other}: allowed is bf16 or fp32")),
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

/// A cheap counter-based stream of values with mean 0 and variance 1 (the sum of twelve uniforms).
fn noise(stream: u64, count: usize) -> Vec<f32> {
    let uniform = |index: u64| {
        let mut x = (index ^ (stream << 56)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= x >> 32;
        x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
        x ^= x >> 32;
        (x >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count as u64).map(|index| (0..12).map(|part| uniform(index * 12 + part)).sum::<f32>() - 6.0).collect()
}

/// Private memory of this process now, in bytes: anonymous pages, no file mappings.
fn private_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|kilobytes| kilobytes.trim().parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

/// Samples private memory every few milliseconds until told to stop.
struct PeakMemory {
    peak: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    sampler: std::thread::JoinHandle<()>,
}

impl PeakMemory {
    fn start() -> Self {
        let (peak, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (theirs, until) = (peak.clone(), stop.clone());
        let sampler = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                theirs.fetch_max(private_bytes(), Ordering::Relaxed);
                std::thread::park_timeout(Duration::from_millis(5));
            }
        });
        PeakMemory { peak, stop, sampler }
    }

    fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.sampler.thread().unpark();
        // A sampler that panicked has nothing more to say than what it has counted.
        let _ended = self.sampler.join();
        self.peak.load(Ordering::Relaxed)
    }
}

fn median(mut seconds: Vec<f64>) -> Option<f64> {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied()
}

fn run(options: &Options) -> Result<(), Error> {
    let memory = PeakMemory::start();
    let runtime = Runtime::initialise(options.threads)?;
    let started = Instant::now();
    let mut model = StableDiffusion::open(&options.checkpoint, options.precision)?;
    let info = model.info();
    println!(
        "{{\"open_seconds\": {:.3}, \"threads\": {}, \"precision\": \"{}\", \"matrix_instructions\": \"{}\"}}",
        started.elapsed().as_secs_f64(),
        runtime.threads,
        options.precision,
        runtime.matrix_instructions
    );
    for picture in 1..=options.encode {
        let started = Instant::now();
        let (height, width) = (options.resolution, options.resolution);
        model.encode_image(&Pixels { height, width, data: noise(3, 3 * height * width) })?;
        println!("{{\"picture\": {picture}, \"encode_seconds\": {:.3}}}", started.elapsed().as_secs_f64());
    }
    model.drop_vae();
    let side = options.resolution / info.vae_factor;
    let count = options.batch * info.latent_channels * side * side;
    let (latents, noises) = (noise(1, count), noise(2, count));
    let row = model.token_row(320)?;
    let all_rows = row.repeat(options.concepts);
    let mut seconds = [Vec::new(), Vec::new()];
    let mut input_ids: Vec<i64> =
        (0..options.batch * info.max_text_length).map(|i| (i as i64 * 37) % 40000).collect();
    let variants = if options.concepts > 1 { 2 } else { 1 };
    for (step, variant) in
        (1..=options.steps).flat_map(|step| (0..variants).map(move |variant| (step, variant)))
    {
        let (concepts, rows) = [(1, &row), (options.concepts, &all_rows)][variant];
        // Sample i of step s shows one of the concepts.
        for (sample, ids) in input_ids.chunks_mut(info.max_text_length).enumerate() {
            ids[4] = (info.vocab_size + (step + sample) % concepts) as i64;
        }
        let timesteps: Vec<i64> = (0..options.batch).map(|i| ((step * 131 + i * 17) % 1000) as i64).collect();
        let started = Instant::now();
        let gradient = model.gradient(&Microbatch {
            batch: options.batch,
            latent_height: side,
            latent_width: side,
            latents: &latents,
            noise: &noises,
            timesteps: &timesteps,
            input_ids: &input_ids,
            rows,
            snr_gamma: None,
        })?;
        let taken = started.elapsed().as_secs_f64();
        if step > 1 {
            seconds[variant].push(taken);
        }
        println!(
            "{{\"step\": {step}, \"concepts\": {concepts}, \"forward_seconds\": {:.3}, \"backward_seconds\": {:.3}, \"step_seconds\": {:.3}, \
             \"loss\": {}}}",
            gradient.forward_seconds, gradient.backward_seconds, taken, gradient.loss
        );
    }
    let [one, several] = seconds.map(median);
    if let (Some(one), Some(several)) = (one, several) {
        let (concepts, ratio) = (options.concepts, several / one);
        println!("{{\"concepts\": {concepts}, \"step_seconds_over_those_of_one\": {ratio:.4}}}");
    }
    println!("{{\"peak_private_bytes\": {}}}", memory.finish());
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
