//! The boundary to `csrc/text.cpp`. `csrc/text_shim.h` declares the same. Every function checks kinds and shapes there.

use tch::Tensor;
use torch_sys::C_tensor;

use crate::error::Result;
use crate::native::{done, tensor_from};

unsafe extern "C" {
    fn ringtune_text_times_rows(
        x: *const C_tensor,
        matrix: *const C_tensor,
        bias: *const C_tensor,
        to_floats: bool,
    ) -> *mut C_tensor;
    fn ringtune_text_remember(
        together: *const C_tensor,
        past: i64,
        keys: *mut C_tensor,
        values: *mut C_tensor,
    ) -> bool;
    fn ringtune_text_attend(
        together: *const C_tensor,
        past: i64,
        keys: *const C_tensor,
        values: *const C_tensor,
    ) -> *mut C_tensor;
}

/// What the result of a product is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    /// As its factors.
    Activation,
    /// fp32.
    Floats,
}

/// `x` [1, width] times each row of `matrix` [rows, width], and `bias` [rows]: [1, rows].
pub(crate) fn times_rows(
    x: &Tensor,
    matrix: &Tensor,
    bias: Option<&Tensor>,
    result: Product,
) -> Result<Tensor> {
    let bias = bias.map_or(std::ptr::null(), Tensor::as_ptr);
    // SAFETY: live tensors (or null for none) that the shim only reads.
    tensor_from(unsafe {
        ringtune_text_times_rows(x.as_ptr(), matrix.as_ptr(), bias, result == Product::Floats)
    })
}

/// Keys and values of one layer for all positions, each [heads, positions, head width].
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) keys: Tensor,
    pub(crate) values: Tensor,
}

impl Cache {
    /// Puts keys and values of `together` [tokens, 3, heads, width] behind the `past` that are there.
    pub(crate) fn remember(&mut self, together: &Tensor, past: i64) -> Result<()> {
        let (keys, values) = (self.keys.as_mut_ptr(), self.values.as_mut_ptr());
        // SAFETY: live tensors; the shim writes to those that are lent to be written.
        done(unsafe { ringtune_text_remember(together.as_ptr(), past, keys, values) })
    }

    /// Attention of the tokens of `together` to the `past` ones and themselves, all of which are here: [tokens, heads x
    /// width].
    pub(crate) fn attend(&self, together: &Tensor, past: i64) -> Result<Tensor> {
        let (keys, values) = (self.keys.as_ptr(), self.values.as_ptr());
        // SAFETY: live tensors that the shim only reads.
        tensor_from(unsafe { ringtune_text_attend(together.as_ptr(), past, keys, values) })
    }
}
