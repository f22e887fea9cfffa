//! A small fixed computation whose bits tell apart machines that would train differently.

use tch::{Kind, Tensor};

use crate::api::Precision;
use crate::attention::scaled_dot_product;
use crate::error::Result;
use crate::layers::{from_tokens, to_tokens};
use crate::native;
use crate::stable_diffusion::{kind_of, to_vec};

const CHANNELS: i64 = 64;
const SIDE: i64 = 24;
const HEADS: i64 = 2;

/// Hash (16 hexadecimal digits) of one fixed forward and backward pass through every kind of kernel a training
/// step uses, in fp32 and in bf16, with the calling thread's number of compute threads. Takes milliseconds.
///
/// Two workers whose probes differ would not train to the same bits. Equal probes are strong evidence, not proof:
/// compare processor model, instruction set, libtorch version and thread count too ([`crate::RuntimeInfo`]).
pub fn probe() -> Result<String> {
    let mut hash = Fnv::new();
    for precision in [Precision::Fp32, Precision::Bf16] {
        add_pass(kind_of(precision), &mut hash)?;
    }
    Ok(format!("{:016x}", hash.0))
}

fn add_pass(kind: Kind, hash: &mut Fnv) -> Result<()> {
    let input = pattern(&[2, CHANNELS, SIDE, SIDE], 1, kind)?.f_set_requires_grad(true)?;
    // Convolution, group norm, SiLU.
    let filter = native::channels_last(&pattern(&[CHANNELS, CHANNELS, 3, 3], 2, kind)?)?;
    let (scale, shift) = (pattern(&[CHANNELS], 3, kind)?, pattern(&[CHANNELS], 4, kind)?);
    let image = native::channels_last(&input)?.f_conv2d(&filter, Some(&shift), [1, 1], [1, 1], [1, 1], 1)?;
    let image = image.f_group_norm(8, Some(&scale), Some(&shift), 1e-5, false)?.f_silu()?;
    // Matrix product, layer norm, attention, GELU.
    let weight = pattern(&[CHANNELS, CHANNELS], 5, kind)?;
    let tokens = to_tokens(&image)?.f_linear(&weight, Some(&shift))?;
    let tokens = tokens.f_layer_norm([CHANNELS], Some(&scale), Some(&shift), 1e-5, false)?;
    let heads = tokens.f_view([2, SIDE * SIDE, HEADS, CHANNELS / HEADS])?;
    let mixed = scaled_dot_product(&heads, &heads, &heads)?.f_reshape([2, SIDE * SIDE, CHANNELS])?;
    let output = from_tokens(&mixed.f_gelu("none")?, SIDE, SIDE)?.f_to_kind(Kind::Float)?;
    // The mean square, and its gradient.
    let loss = output.f_square()?.f_mean(Kind::Float)?;
    let gradients = Tensor::f_run_backward(&[&loss], &[&input], false, false)?;
    for tensor in [&loss.f_view([1])?, &output.f_detach()?, &gradients[0]] {
        to_vec(tensor)?.iter().for_each(|value| hash.add(value.to_bits()));
    }
    Ok(())
}

/// Values in [-0.5, 0.5) that depend on place and `stream` alone.
fn pattern(shape: &[i64], stream: u32, kind: Kind) -> Result<Tensor> {
    let count = shape.iter().product::<i64>() as u32;
    let values: Vec<f32> = (0..count)
        .map(|index| {
            let mixed = (index ^ (stream << 24)).wrapping_mul(0x9e37_79b9);
            let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca6b);
            (mixed >> 8) as f32 / (1u32 << 24) as f32 - 0.5
        })
        .collect();
    Ok(Tensor::f_from_slice(&values)?.f_view(shape)?.f_to_kind(kind)?)
}

/// FNV-1a with 64 bits, word by word.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, word: u32) {
        for byte in word.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_the_same_each_time_and_tells_kinds_apart() -> Result<()> {
        let first = probe()?;
        assert_eq!(first, probe()?);
        assert_eq!(first.len(), 16);
        let hash_of = |kind| {
            let mut hash = Fnv::new();
            add_pass(kind, &mut hash).map(|()| hash.0)
        };
        assert_ne!(hash_of(Kind::Float)?, hash_of(Kind::BFloat16)?);
        Ok(())
    }
}
