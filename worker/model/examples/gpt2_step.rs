//! Times training steps of a GPT-2 of 124 million parameters that was never trained: tests/bench/gpt2.sh has it beside
//! PyTorch's. Prints an object for each step, and with --profile where the last one's time went.
//!
//! usage: gpt2_step [--batch 4] [--block 1024] [--steps 4] [--threads 2] [--dropout 0.0] [--fp32] [--profile]

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use std::collections::BTreeMap;
use std::time::Instant;

use ringtune_model::{
    AlignedFloats, BucketSizes, Buckets, Dropout, EmbeddingRows, EngineError, Gpt2, LanguageModelSource,
    NewLanguageModel, OpenLanguageModel, OptimizerStep, Precision, Runtime, TokenBatch, profile,
};

type Failure = Box<dyn std::error::Error>;

/// Keeps all buckets in memory.
struct Kept(Vec<AlignedFloats>);

impl Buckets for Kept {
    fn take(&mut self, bucket: usize) -> Result<AlignedFloats, EngineError> {
        Ok(std::mem::take(&mut self.0[bucket]))
    }

    fn give(&mut self, bucket: usize, memory: AlignedFloats) -> Result<(), EngineError> {
        self.0[bucket] = memory;
        Ok(())
    }
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| arguments.iter().any(|one| one == name);
    let given = |name: &str| match arguments.iter().position(|one| one == name) {
        Some(place) => arguments.get(place + 1).ok_or("a number is missing").map(Some),
        None => Ok(None),
    };
    let number = |name: &str, default: usize| -> Result<usize, Failure> {
        Ok(given(name)?.map_or(Ok(default), |text| text.parse())?)
    };
    let rate: f64 = given("--dropout")?.map_or(Ok(0.0), |text| text.parse())?;
    let (batch, block) = (number("--batch", 4)?, number("--block", 1024)?);
    let (steps, threads) = (number("--steps", 4)?, number("--threads", 2)?);
    Runtime::initialise(threads)?;
    let (vocab_size, n_positions, n_layer, n_head, n_embd) = (50_257, 1024, 12, 12, 768);
    let new = NewLanguageModel { vocab_size, n_positions, n_layer, n_head, n_embd, bias: true, seed: 1 };
    let precision = if flag("--fp32") { Precision::Fp32 } else { Precision::Bf16 };
    let source = LanguageModelSource::New(new);
    let mut model =
        Gpt2::open(&OpenLanguageModel { source, precision, threads, buckets: BucketSizes::default() })?;
    let lengths = model.parameters.info().plan.buckets.iter().map(|bucket| bucket.length).collect::<Vec<_>>();
    let mut kept = Kept(lengths.into_iter().chain([0]).map(AlignedFloats::zeros).collect());
    for step in 1..=steps {
        let last = step == steps && flag("--profile");
        if last {
            profile::start()?;
        }
        // As good as random, and the same in every run.
        let id = |place: usize| ((place * 40_503 + step * 7919) % vocab_size) as i64;
        let inputs: Vec<i64> = (0..batch * block).map(id).collect();
        let targets = (1..=batch * block).map(id).collect();
        let (started, computed) = (Instant::now(), computed()?);
        let dropout = Some(Dropout { rate, seed: 1, step: step as u64, first_sample: 0 });
        let looked_up = EmbeddingRows::of(inputs.iter().copied());
        if let Some(rows) = kept.0.last_mut() {
            *rows = std::mem::take(rows).resized(model.parameters.info().looked_up_length(&looked_up));
        }
        let microbatch = TokenBatch { batch, block, inputs, targets, looked_up, add: false, dropout };
        let made = model.gradient(&microbatch, &mut kept)?;
        let applying = Instant::now();
        let (learning_rate, weight_decay, max_grad_norm) = (6e-4, 0.1, Some(1.0));
        let optimizer = OptimizerStep {
            number: step as u64,
            learning_rate,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay,
            max_grad_norm,
            divide_by: 1,
            other_rates: [0.0; 2],
            average_decay: None,
        };
        let applied = model.parameters.apply(&optimizer, &microbatch.looked_up, &mut kept.0)?;
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "{{\"step_seconds\": {seconds:.3}, \"cpu_seconds\": {:.3}, \"tokens_per_s\": {:.0}, \"loss\": {:.3}, \
             \"grad_norm\": {:.3}, \"forward_seconds\": {:.3}, \"backward_seconds\": {:.3}, \"optimizer_seconds\": {:.3}}}",
            self::computed()? - computed,
            (batch * block) as f64 / seconds,
            made.loss,
            applied.grad_norm,
            made.forward_seconds,
            made.backward_seconds,
            applying.elapsed().as_secs_f64(),
        );
        if last {
            show(&profile::stop()?);
        }
    }
    println!("{{\"peak_resident_bytes\": {}}}", peak()?);
    Ok(())
}

/// Operators that are within no other, by the time that they take together.
fn show(recording: &ringtune_engine::Recording) {
    let mut operators: Vec<_> = recording.operators.iter().collect();
    operators.sort_by_key(|operator| (operator.thread, operator.start, std::cmp::Reverse(operator.end)));
    let mut sums: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    let (mut thread, mut end) = (u64::MAX, 0);
    for operator in operators {
        if operator.thread == thread && operator.start < end {
            continue;
        }
        (thread, end) = (operator.thread, operator.end);
        let sum = sums.entry(&operator.name).or_default();
        *sum = (sum.0 + 1, sum.1 + operator.end - operator.start);
    }
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by_key(|(_, (_, taken))| std::cmp::Reverse(*taken));
    for (name, (calls, taken)) in rows.into_iter().take(24) {
        println!("{name:44}{calls:6}{:10.1} ms", taken as f64 / 1e6);
    }
}

/// Seconds that all threads computed so far: Linux, proc(5), in hundredths.
fn computed() -> Result<f64, Failure> {
    let status = std::fs::read_to_string("/proc/self/stat")?;
    let behind_name = status.rsplit(')').next().unwrap_or_default();
    let ticks = behind_name.split_ascii_whitespace().skip(11).take(2).map(str::parse::<u64>);
    Ok(ticks.sum::<Result<u64, _>>()? as f64 / 100.0)
}

/// Bytes of memory that the process had at most: Linux, proc(5).
fn peak() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? * 1024)
}
