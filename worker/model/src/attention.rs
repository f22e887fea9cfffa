//! Softmax attention with gradient. In bf16 with AVX-512 BF16, and in fp32 with AVX2 (with AVX-512 where they are faster), it runs on
//! this crate's own tiled kernels (`csrc/attention_*.cpp`, `csrc/float_attention_*`); otherwise on libtorch's.

use std::fmt;

use ringtune_engine::Attention;
use tch::{Kind, Tensor};

use crate::error::Result;
use crate::native;

/// What attention runs on in bf16; all but libtorch's have our tiles in fp32 too, where these are used. The values are those of
/// csrc/shim.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum AttentionKernel {
    /// libtorch's scaled_dot_product_attention.
    Libtorch = 0,
    /// In bf16 our tiles, multiplied by AVX-512's bf16 dot products.
    Avx512 = 1,
    /// In bf16 our tiles, multiplied by AMX.
    Amx = 2,
    /// Our tiles in fp32 alone.
    Floats = 3,
}

impl AttentionKernel {
    /// The fastest that may be used here.
    pub fn best() -> Self {
        match native::attention_kernel() {
            1 => Self::Avx512,
            2 => Self::Amx,
            3 => Self::Floats,
            _ => Self::Libtorch,
        }
    }
}

impl fmt::Display for AttentionKernel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Libtorch => "libtorch",
            Self::Avx512 => "tiled, AVX-512 BF16",
            Self::Amx => "tiled, AMX",
            Self::Floats => "tiled, fp32",
        })
    }
}

/// softmax(query keyᵀ / sqrt(width)) value, with gradient.
///
/// `query`: [batch, queries, heads, width]; `key`, `value`: [batch, keys, heads, width]; all of one kind, in any
/// strides (no copy is made if the width is contiguous). Returns query's shape. Fails on other shapes.
/// The bits of the result do not depend on the number of threads where it runs on our tiles.
pub fn scaled_dot_product(query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
    scaled_dot_product_on(AttentionKernel::best(), query, key, value)
}

/// As above with interleaved queries, keys and values: `together`: [batch, tokens, 3, heads, width]; returns
/// [batch, tokens, heads, width].
pub fn self_attention(together: &Tensor) -> Result<Tensor> {
    self_attention_on(AttentionKernel::best(), together)
}

/// As [`scaled_dot_product`], computed in this way: with all weights as a tensor, the scores are in the inputs' kind and softmax in
/// fp32, as under autocast.
pub(crate) fn attend(how: Attention, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
    if how == Attention::Fused {
        return scaled_dot_product(query, key, value);
    }
    let (batch, queries, heads, width) = query.size4()?;
    let rows = |tensor: &Tensor| tensor.f_transpose(1, 2)?.f_reshape([batch * heads, -1, width]);
    let (query, key, value) = (rows(query)?, rows(key)?, rows(value)?);
    let slices = if how == Attention::Sliced { batch * heads } else { 1 };
    let count = batch * heads / slices;
    let mut mixed = Vec::with_capacity(slices as usize);
    for slice in 0..slices {
        let of = |tensor: &Tensor| tensor.f_narrow(0, slice * count, count);
        let scores = of(&query)?.f_matmul(&of(&key)?.f_transpose(1, 2)?)?;
        let scores = scores.f_mul_scalar(1.0 / (width as f64).sqrt())?;
        let weights = scores.f_softmax(-1, Kind::Float)?.f_to_kind(value.f_kind()?)?;
        mixed.push(weights.f_matmul(&of(&value)?)?);
    }
    Ok(Tensor::f_cat(&mixed, 0)?.f_view([batch, heads, queries, width])?.f_transpose(1, 2)?)
}

fn self_attention_on(kernel: AttentionKernel, together: &Tensor) -> Result<Tensor> {
    native::self_attention(together, kernel as i32)
}

fn scaled_dot_product_on(
    kernel: AttentionKernel,
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
) -> Result<Tensor> {
    native::attention(query, key, value, kernel as i32)
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
