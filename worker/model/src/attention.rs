//! Softmax attention with gradient. In bf16 with AVX-512 BF16, and in fp32 with AVX2 (with AVX-512 where they are faster), it runs on
//! this crate's own tiled kernels (`csrc/attention_*.cpp`, `csrc/float_attention_*`); otherwise on libtorch's.

use std::fmt;

use tch::Tensor;

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

/// The same where queries, keys and values lie together: `together`: [batch, tokens, 3, heads, width]; returns
/// [batch, tokens, heads, width].
pub fn self_attention(together: &Tensor) -> Result<Tensor> {
    self_attention_on(AttentionKernel::best(), together)
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
