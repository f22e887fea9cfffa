//! Softmax attention with gradient. In bf16 on a processor with AVX-512 BF16, and in fp32 on one with AVX2 and no AVX-512, it runs
//! on this crate's own tiled kernels (`csrc/attention_*.cpp`, `csrc/float_attention_*.cpp`); otherwise on libtorch's.

use std::fmt;
use std::sync::OnceLock;

use tch::Tensor;

use crate::error::Result;
use crate::native;

/// Attention kernels. The values are those of csrc/shim.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum AttentionKernel {
    /// libtorch's scaled_dot_product_attention.
    Libtorch = 0,
    /// In bf16 our tiles, multiplied by AVX-512's bf16 dot products.
    Avx512 = 1,
    /// In bf16 our tiles, multiplied by AMX.
    Amx = 2,
    /// In fp32 our tiles, multiplied by AVX2.
    Avx2 = 3,
}

impl AttentionKernel {
    /// The fastest that this processor has.
    pub fn best() -> Self {
        static BEST: OnceLock<AttentionKernel> = OnceLock::new();
        *BEST.get_or_init(|| match native::attention_kernel() {
            1 => Self::Avx512,
            2 => Self::Amx,
            3 => Self::Avx2,
            _ => Self::Libtorch,
        })
    }
}

impl fmt::Display for AttentionKernel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Libtorch => "libtorch",
            Self::Avx512 => "tiled, AVX-512 BF16",
            Self::Amx => "tiled, AMX",
            Self::Avx2 => "tiled, AVX2",
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
