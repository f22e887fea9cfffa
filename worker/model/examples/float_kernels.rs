//! Times our own kernels in fp32 and libtorch's in turns, to decide which of them are used with AVX-512 (`csrc/float_layers.h`).
//!
//! usage: float_kernels [ROUNDS] [THREADS]

#![allow(clippy::print_stdout, reason = "a program for people")]

use ringtune_model::{Runtime, float_rates};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: usize| arguments.next().map_or(Ok(default), |text| text.parse());
    let (rounds, threads) = (number(9)?, number(2)?);
    let info = Runtime::initialise(threads)?;
    println!("{} beside libtorch with {}, {threads} threads", info.instructions, info.cpu_capability);
    for rate in float_rates(rounds)? {
        let [ours, libtorch] = rate.seconds.map(|seconds| seconds * 1e3);
        println!(
            "{:<12} {:<28} {ours:8.2} ms, libtorch {libtorch:8.2} ms: {:.2}",
            rate.family,
            rate.what,
            ours / libtorch
        );
    }
    Ok(())
}
