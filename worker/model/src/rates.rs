//! Peak rates of libtorch and the machine on single kinds of work, as references for a step.

use std::time::Instant;

use ringtune_engine::{MachineRates, Precision};
use tch::{Device, Tensor};

use crate::error::Result;
use crate::native;
use crate::stable_diffusion::kind_of;

/// Calls of each, of which the fastest counts.
const CALLS: usize = 3;
/// Channels and side of the convolution.
const CHANNELS: i64 = 320;
const SIDE: i64 = 64;
/// Side of the matrices: large enough for every core, small enough to stay near them.
const MATRIX: i64 = 2048;
/// Bytes that are copied: more than caches hold, for most machines.
const COPIED: usize = 128 << 20;

/// Measures it with the threads of the calling thread. Takes a few tenths of a second, and 256 MB for as long.
pub fn machine_rates(precision: Precision) -> Result<MachineRates> {
    let _no_gradient = tch::no_grad_guard();
    let options = (kind_of(precision), Device::Cpu);
    // 1. The convolution, as the UNet has most of them. 2 FLOP for each weight and position.
    let image = native::channels_last(&Tensor::f_ones([1, CHANNELS, SIDE, SIDE], options)?)?;
    let filter = native::channels_last(&Tensor::f_ones([CHANNELS, CHANNELS, 3, 3], options)?)?;
    let convolution = 2.0 * (9 * CHANNELS * CHANNELS * SIDE * SIDE) as f64
        / fastest(|| Ok(image.f_conv2d::<Tensor>(&filter, None, [1, 1], [1, 1], [1, 1], 1)?))?;
    // 2. The product.
    let matrix = Tensor::f_ones([MATRIX, MATRIX], options)?;
    let product = 2.0 * (MATRIX as f64).powi(3) / fastest(|| Ok(matrix.f_matmul(&matrix)?))?;
    Ok(MachineRates { convolution, product, copy: copy_rate(native::threads()) })
}

/// Seconds of the fastest call.
fn fastest(call: impl Fn() -> Result<Tensor>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..CALLS {
        let started = Instant::now();
        let result = call()?;
        best = best.min(started.elapsed().as_secs_f64());
        drop(result);
    }
    Ok(best)
}

/// Bytes a second, read and written. In memory of its own, so that libtorch's is left as steps have it.
fn copy_rate(threads: usize) -> f64 {
    let source = vec![1u8; COPIED];
    let mut target = vec![0u8; COPIED];
    let part = COPIED.div_ceil(threads.max(1));
    let mut best = f64::INFINITY;
    // The first touches the target's pages.
    for _ in 0..=CALLS {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for (to, from) in target.chunks_mut(part).zip(source.chunks(part)) {
                scope.spawn(move || to.copy_from_slice(from));
            }
        });
        best = best.min(started.elapsed().as_secs_f64());
    }
    std::hint::black_box(&target);
    2.0 * COPIED as f64 / best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_a_machine() -> Result<()> {
        let MachineRates { convolution, product, copy } = machine_rates(Precision::Fp32)?;
        for flops in [convolution, product] {
            assert!((1e8..1e15).contains(&flops), "{flops}");
        }
        assert!((1e7..1e14).contains(&copy), "{copy}");
        Ok(())
    }
}
