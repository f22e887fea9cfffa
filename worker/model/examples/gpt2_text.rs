//! Times the making of text with a GPT-2 of 124 million parameters that was never trained, token by token.
//!
//! usage: gpt2_text [--prompt 64] [--tokens 200] [--threads 2] [--fp32] [--profile]

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use std::collections::BTreeMap;
use std::time::Instant;

use ringtune_model::{
    Gpt2Text, LanguageModelSource, NewLanguageModel, OpenTextModel, Precision, Runtime, TextContext, profile,
};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| arguments.iter().any(|one| one == name);
    let number = |name: &str, default: usize| -> Result<usize, Failure> {
        match arguments.iter().position(|one| one == name) {
            Some(place) => Ok(arguments.get(place + 1).ok_or("a number is missing")?.parse()?),
            None => Ok(default),
        }
    };
    let (prompt, tokens, threads) =
        (number("--prompt", 64)?, number("--tokens", 200)?, number("--threads", 2)?);
    Runtime::initialise(threads)?;
    let (vocab_size, n_positions, n_layer, n_head, n_embd) = (50_257, 1024, 12, 12, 768);
    let new = NewLanguageModel { vocab_size, n_positions, n_layer, n_head, n_embd, bias: true, seed: 1 };
    let precision = if flag("--fp32") { Precision::Fp32 } else { Precision::Bf16 };
    let started = Instant::now();
    let mut model =
        Gpt2Text::open(&OpenTextModel { source: LanguageModelSource::New(new), precision, threads })?;
    println!("opened in {:.2} s, {precision}, {threads} threads", started.elapsed().as_secs_f64());
    let ids = (0..prompt).map(|place| ((place * 40_503) % vocab_size) as i64).collect();
    let mut context = TextContext::new(ids, n_positions);
    let mut seconds = Vec::new();
    for token in 0..=tokens {
        if token == tokens && flag("--profile") {
            profile::start()?;
        }
        let started = Instant::now();
        let logits = model.next_logits(&context.feed())?;
        seconds.push(started.elapsed().as_secs_f64());
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or_default();
        context.push(best as i64);
    }
    if flag("--profile") {
        show(&profile::stop()?);
    }
    let steps = seconds.split_off(1);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len().max(1) as f64;
    let (first, last) = steps.split_at(steps.len() / 2);
    println!("prompt of {prompt}: {:.1} ms", seconds[0] * 1e3);
    println!(
        "each of {tokens} tokens: {:.2} ms, {:.1} tokens/s; first half {:.2} ms, second half {:.2} ms",
        mean(&steps) * 1e3,
        1.0 / mean(&steps),
        mean(first) * 1e3,
        mean(last) * 1e3
    );
    // On a machine that does other things too, the fastest say more than the mean.
    let mut sorted = steps.clone();
    sorted.sort_by(f64::total_cmp);
    let fastest = sorted[sorted.len() / 10];
    println!("the fastest tenth: {:.2} ms or less, {:.1} tokens/s", fastest * 1e3, 1.0 / fastest);
    println!("peak resident: {} MB", peak()? / 1_000_000);
    Ok(())
}

/// Operators by the time that they take.
fn show(recording: &ringtune_engine::Recording) {
    let mut sums: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for operator in &recording.operators {
        let sum = sums.entry(&operator.name).or_default();
        *sum = (sum.0 + 1, sum.1 + operator.end - operator.start);
    }
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by_key(|(_, (_, taken))| std::cmp::Reverse(*taken));
    for (name, (calls, taken)) in rows.into_iter().take(16) {
        println!("{name:44}{calls:6}{:10.3} ms", taken as f64 / 1e6);
    }
}

/// Bytes of memory that the process had at most: Linux, proc(5).
fn peak() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? * 1024)
}
