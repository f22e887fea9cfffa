//! The boundary to `csrc/language*.cpp` and `csrc/causal_attention.cpp`. `csrc/language_shim.h` declares the same. Every
//! function checks kinds and shapes there.

use std::ffi::c_int;

use tch::Tensor;
use torch_sys::C_tensor;

use crate::attention::AttentionKernel;
use crate::dropout::{Mask, RawMask};
use crate::error::Result;
use crate::native::{done, tensor_from, tensors_from};
use crate::parameters::native::yes_or_no;

unsafe extern "C" {
    fn ringtune_language_embed(
        wte: *const C_tensor,
        wpe: *const C_tensor,
        ids: *const C_tensor,
    ) -> *mut C_tensor;
    fn ringtune_language_place_backward(
        gradient: *const C_tensor,
        tokens: i64,
        first: i64,
        add: bool,
        target: *mut C_tensor,
    ) -> bool;
    fn ringtune_language_norm(
        x: *const C_tensor,
        added: *const C_tensor,
        weight: *const C_tensor,
        bias: *const C_tensor,
        epsilon: f64,
        low: bool,
        results: *mut *mut C_tensor,
    ) -> bool;
    fn ringtune_language_norm_backward(
        gradient: *const C_tensor,
        x: *const C_tensor,
        statistics: *const C_tensor,
        weight: *const C_tensor,
        residual: *mut C_tensor,
        results: *mut *mut C_tensor,
    ) -> bool;
    fn ringtune_language_gelu(x: *const C_tensor) -> *mut C_tensor;
    fn ringtune_language_gelu_backward(x: *const C_tensor, gradient: *mut C_tensor) -> *mut C_tensor;
    fn ringtune_language_column_sums(x: *const C_tensor, add: bool, target: *mut C_tensor) -> bool;
    fn ringtune_language_cross_entropy(
        logits: *mut C_tensor,
        targets: *const C_tensor,
        gradient: bool,
        scale: f64,
    ) -> *mut C_tensor;
    fn ringtune_language_times(
        x: *const C_tensor,
        weight: *const C_tensor,
        bias: *const C_tensor,
    ) -> *mut C_tensor;
    fn ringtune_language_times_turned(x: *const C_tensor, weight: *const C_tensor) -> *mut C_tensor;
    fn ringtune_language_put_turned(x: *const C_tensor, add: bool, target: *mut C_tensor) -> c_int;
    fn ringtune_causal_attention(
        together: *const C_tensor,
        mask: *const RawMask,
        kernel: c_int,
        results: *mut *mut C_tensor,
    ) -> bool;
    fn ringtune_causal_attention_backward(
        together: *const C_tensor,
        output: *const C_tensor,
        kept: *const C_tensor,
        gradient: *const C_tensor,
        mask: *const RawMask,
        kernel: c_int,
    ) -> *mut C_tensor;
}

fn or_null(tensor: Option<&Tensor>) -> *const C_tensor {
    tensor.map_or(std::ptr::null(), Tensor::as_ptr)
}

/// `wte`[ids] + `wpe`: [batch * tokens, width] fp32; `ids`: [batch, tokens], all of them rows of `wte`.
pub(crate) fn embed(wte: &Tensor, wpe: &Tensor, ids: &Tensor) -> Result<Tensor> {
    // SAFETY: live tensors that the shim only reads.
    tensor_from(unsafe { ringtune_language_embed(wte.as_ptr(), wpe.as_ptr(), ids.as_ptr()) })
}

/// The rows of `gradient`, [batch * tokens, width], summed over the batch: those of the places from `first` on.
pub(crate) fn place_backward(
    gradient: &Tensor,
    tokens: i64,
    first: i64,
    add: bool,
    target: &mut Tensor,
) -> Result<()> {
    // SAFETY: live tensors; the shim writes to the one that is lent to be written.
    done(unsafe {
        ringtune_language_place_backward(gradient.as_ptr(), tokens, first, add, target.as_mut_ptr())
    })
}

/// A layer norm's parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Affine<'a> {
    pub(crate) weight: &'a Tensor,
    pub(crate) bias: Option<&'a Tensor>,
    pub(crate) epsilon: f64,
}

/// The sum of `x` [rows, width] fp32 and `added` (`x` itself without), its layer norm as an activation, bf16 where `low`,
/// and what the way back needs, [rows, 2].
pub(crate) fn add_and_norm(
    x: &Tensor,
    added: Option<&Tensor>,
    affine: Affine,
    low: bool,
) -> Result<[Tensor; 3]> {
    let (weight, bias) = (affine.weight.as_ptr(), or_null(affine.bias));
    // SAFETY: live tensors (or null for none) that the shim only reads; it writes three results.
    tensors_from(|results| unsafe {
        ringtune_language_norm(x.as_ptr(), or_null(added), weight, bias, affine.epsilon, low, results)
    })
}

/// What a norm's way back begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormGradient<'a> {
    /// Of the norm's result.
    pub(crate) gradient: &'a Tensor,
    /// The norm's input, fp32.
    pub(crate) x: &'a Tensor,
    pub(crate) statistics: &'a Tensor,
    pub(crate) weight: &'a Tensor,
}

/// Adds the gradient of the norm's input to `residual`, in place. Gives it as an activation too, and the gradients of
/// weight and bias, [2, width].
pub(crate) fn norm_backward(norm: NormGradient, residual: &mut Tensor) -> Result<[Tensor; 2]> {
    let NormGradient { gradient, x, statistics, weight } = norm;
    // SAFETY: live tensors; the shim writes to the one that is lent to be written, and two results.
    tensors_from(|results| unsafe {
        ringtune_language_norm_backward(
            gradient.as_ptr(),
            x.as_ptr(),
            statistics.as_ptr(),
            weight.as_ptr(),
            residual.as_mut_ptr(),
            results,
        )
    })
}

/// GELU by tanh.
pub(crate) fn gelu(x: &Tensor) -> Result<Tensor> {
    // SAFETY: a live tensor that the shim only reads.
    tensor_from(unsafe { ringtune_language_gelu(x.as_ptr()) })
}

/// The gradient of [`gelu`]'s input, in place of that of its result, [rows, width]. Gives its sums over the rows, [width] fp32.
pub(crate) fn gelu_backward(x: &Tensor, gradient: &mut Tensor) -> Result<Tensor> {
    // SAFETY: live tensors; the shim writes to the one that is lent to be written.
    tensor_from(unsafe { ringtune_language_gelu_backward(x.as_ptr(), gradient.as_mut_ptr()) })
}

/// `target` [width]: the sums over the rows of `x` [rows, width].
pub(crate) fn column_sums(x: &Tensor, add: bool, target: &mut Tensor) -> Result<()> {
    // SAFETY: as above.
    done(unsafe { ringtune_language_column_sums(x.as_ptr(), add, target.as_mut_ptr()) })
}

/// The loss of each row, in nats; `logits` [rows, vocabulary], whose rows may lie apart, become its gradient times `scale`, where there is one.
pub(crate) fn cross_entropy(logits: &mut Tensor, targets: &Tensor, scale: Option<f64>) -> Result<Tensor> {
    let (gradient, scale) = (scale.is_some(), scale.unwrap_or(0.0));
    // SAFETY: as above.
    tensor_from(unsafe {
        ringtune_language_cross_entropy(logits.as_mut_ptr(), targets.as_ptr(), gradient, scale)
    })
}

/// x W + b of activations: `x` [rows, inputs], `weight` [inputs, outputs], `bias` [outputs].
pub(crate) fn times(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    // SAFETY: live tensors (or null for none) that the shim only reads.
    tensor_from(unsafe { ringtune_language_times(x.as_ptr(), weight.as_ptr(), or_null(bias)) })
}

/// x Wᵀ: `x` [rows, outputs], `weight` [inputs, outputs].
pub(crate) fn times_turned(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    // SAFETY: as above.
    tensor_from(unsafe { ringtune_language_times_turned(x.as_ptr(), weight.as_ptr()) })
}

/// `target` [rows, width] (+)= `x` [width, rows], whose rows may lie apart; whether all of the target is finite then.
pub(crate) fn put_turned(x: &Tensor, add: bool, target: &mut Tensor) -> Result<bool> {
    // SAFETY: live tensors; the shim writes to the one that is lent to be written.
    yes_or_no(unsafe { ringtune_language_put_turned(x.as_ptr(), add, target.as_mut_ptr()) })
}

/// Numbers that a row's length in memory is a multiple of, so that each row begins with a cache line.
const ROW_MULTIPLE: i64 = 64;

/// Memory for `rows` of `width` numbers of `like`'s kind, each row at the beginning of a cache line. A vocabulary's width is odd, and
/// libtorch multiplies rows that begin anywhere up to a quarter slower.
///
/// The padding between the rows is zero. oneDNN's AMX kernels multiply bf16 numbers in pairs: of a row with an odd number of them they
/// also read the first number of the padding, times zero. Memory that was used before may hold a NaN there.
pub(crate) fn rows_apart(rows: i64, width: i64, like: &Tensor) -> Result<Tensor> {
    let stride = (width + ROW_MULTIPLE - 1) / ROW_MULTIPLE * ROW_MULTIPLE;
    let whole = Tensor::f_empty([rows, stride], (like.f_kind()?, like.device()))?;
    let _same = whole.f_narrow(1, width, stride - width)?.f_zero_()?;
    Ok(whole.f_narrow(1, 0, width)?)
}

/// Attention of each token to itself and those before it: `together` [batch, tokens, 3, heads, width]; `mask` drops of the
/// probabilities. Gives [batch, tokens, heads, width], and what the way back needs.
pub(crate) fn causal_attention(
    together: &Tensor,
    mask: Option<&Mask>,
    kernel: AttentionKernel,
) -> Result<[Tensor; 2]> {
    let raw = mask.map(Mask::raw);
    let mask = raw.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: a live tensor that the shim only reads, and a mask (or null for none) that lives longer than the call; it
    // writes two results.
    tensors_from(|results| unsafe {
        ringtune_causal_attention(together.as_ptr(), mask, kernel as c_int, results)
    })
}

/// The gradient of `together`; `mask`: that of the way forward.
pub(crate) fn causal_attention_backward(
    together: &Tensor,
    [output, kept]: [&Tensor; 2],
    gradient: &Tensor,
    mask: Option<&Mask>,
    kernel: AttentionKernel,
) -> Result<Tensor> {
    let (output, kept, kernel) = (output.as_ptr(), kept.as_ptr(), kernel as c_int);
    let raw = mask.map(Mask::raw);
    let mask = raw.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: live tensors that the shim only reads, and a mask as above.
    tensor_from(unsafe {
        ringtune_causal_attention_backward(together.as_ptr(), output, kept, gradient.as_ptr(), mask, kernel)
    })
}
