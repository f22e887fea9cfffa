//! The boundary to `csrc/`: what libtorch can do and tch does not reach. `csrc/shim.h` declares the same.

use std::ffi::{CStr, c_char, c_int, c_void};

use tch::{Kind, TchError, Tensor};
use torch_sys::C_tensor;

use crate::error::{Error, Result};

unsafe extern "C" {
    fn ringtune_last_error() -> *const c_char;
    fn ringtune_libtorch_version() -> *const c_char;
    fn ringtune_from_blob(
        data: *mut c_void,
        shape: *const i64,
        dimensions: usize,
        kind: c_int,
        owner: *mut c_void,
        release: extern "C" fn(*mut c_void),
    ) -> *mut C_tensor;
    fn ringtune_channels_last(tensor: *const C_tensor) -> *mut C_tensor;
    fn ringtune_attention(
        query: *const C_tensor,
        key: *const C_tensor,
        value: *const C_tensor,
        kernel: c_int,
    ) -> *mut C_tensor;
    fn ringtune_attention_kernel() -> c_int;
    fn ringtune_group_norm(
        x: *const C_tensor,
        skip: *const C_tensor,
        added: *const C_tensor,
        groups: i64,
        weight: *const C_tensor,
        bias: *const C_tensor,
        epsilon: f64,
        silu: bool,
        results: *mut *mut C_tensor,
    ) -> bool;
    fn ringtune_layer_norm(
        x: *const C_tensor,
        weight: *const C_tensor,
        bias: *const C_tensor,
        epsilon: f64,
        results: *mut *mut C_tensor,
    ) -> bool;
    fn ringtune_geglu(x: *const C_tensor) -> *mut C_tensor;
    fn ringtune_pack_convolution(
        weight: *const C_tensor,
        input_size: *const i64,
        dimensions: usize,
        backward: bool,
    ) -> *mut C_tensor;
    fn ringtune_packed_convolution(
        input: *const C_tensor,
        forward_weight: *const C_tensor,
        backward_weight: *const C_tensor,
        bias: *const C_tensor,
    ) -> *mut C_tensor;
    fn ringtune_linear_add(
        input: *const C_tensor,
        weight: *const C_tensor,
        bias: *const C_tensor,
        residual: *const C_tensor,
    ) -> *mut C_tensor;
    fn ringtune_packed_convolution_add(
        input: *const C_tensor,
        forward_weight: *const C_tensor,
        backward_weight: *const C_tensor,
        bias: *const C_tensor,
        residual: *const C_tensor,
    ) -> *mut C_tensor;
    fn ringtune_install_allocator() -> bool;
    fn ringtune_release_memory() -> bool;
    fn ringtune_set_threads(threads: c_int) -> bool;
    fn ringtune_set_interop_threads(threads: c_int) -> bool;
    fn ringtune_get_threads() -> c_int;
    fn ringtune_cpu_capability() -> *mut c_char;
    fn ringtune_free_string(text: *mut c_char);
}

/// The message of the last failed shim call of this thread, as an error.
fn last_error() -> Error {
    // SAFETY: the shim returns a NUL-terminated string owned by this thread, alive until its next failed call.
    let message = unsafe { CStr::from_ptr(ringtune_last_error()) };
    Error::Torch(TchError::Torch(message.to_string_lossy().into_owned()))
}

/// Takes ownership of a tensor made by the shim; null means failure.
fn tensor_from(pointer: *mut C_tensor) -> Result<Tensor> {
    if pointer.is_null() {
        return Err(last_error());
    }
    // SAFETY: a non-null result is a heap-allocated at::Tensor that nobody else owns.
    Ok(unsafe { Tensor::from_ptr(pointer) })
}

/// Takes ownership of the tensors that `fill` wrote; false means failure.
fn tensors_from<const COUNT: usize>(
    fill: impl FnOnce(*mut *mut C_tensor) -> bool,
) -> Result<[Tensor; COUNT]> {
    let mut pointers = [std::ptr::null_mut(); COUNT];
    if !fill(pointers.as_mut_ptr()) {
        return Err(last_error());
    }
    // SAFETY: after a success all are heap-allocated at::Tensors that nobody else owns.
    Ok(pointers.map(|pointer| unsafe { Tensor::from_ptr(pointer) }))
}

/// libtorch's version the shim was compiled against, such as "2.13.0".
pub(crate) fn libtorch_version() -> String {
    // SAFETY: a static NUL-terminated string.
    unsafe { CStr::from_ptr(ringtune_libtorch_version()) }.to_string_lossy().into_owned()
}

/// The instruction set ATen's own kernels dispatch to ("AVX512", "AVX2", "DEFAULT").
pub(crate) fn cpu_capability() -> String {
    // SAFETY: a fresh NUL-terminated string (or null when memory ran out), freed right after the copy.
    unsafe {
        let text = ringtune_cpu_capability();
        if text.is_null() {
            return "unknown".to_string();
        }
        let owned = CStr::from_ptr(text).to_string_lossy().into_owned();
        ringtune_free_string(text);
        owned
    }
}

/// A tensor over `data` without a copy; `owner` lives until the last view of the tensor is dropped.
///
/// # Safety
/// `data` must be valid for reads of the whole tensor, aligned for `kind`, as long as `owner` is alive, and
/// nobody may write to the tensor.
pub(crate) unsafe fn tensor_over<Owner: Send + Sync>(
    data: *const u8,
    shape: &[i64],
    kind: Kind,
    owner: std::sync::Arc<Owner>,
) -> Result<Tensor> {
    extern "C" fn release<Owner>(owner: *mut c_void) {
        // SAFETY: the pointer came from Arc::into_raw below, and libtorch calls a deleter exactly once.
        drop(unsafe { std::sync::Arc::from_raw(owner as *const Owner) });
    }
    let kind = scalar_type(kind)?;
    let owner = std::sync::Arc::into_raw(owner) as *mut c_void;
    // SAFETY: the caller vouches for `data`; shape is a live slice; `owner` and `release` match in type.
    let pointer = unsafe {
        ringtune_from_blob(data as *mut c_void, shape.as_ptr(), shape.len(), kind, owner, release::<Owner>)
    };
    // On failure libtorch may or may not have taken the owner: leaking one reference is the safe side.
    tensor_from(pointer)
}

/// c10::ScalarType of the kinds that weights come in.
fn scalar_type(kind: Kind) -> Result<c_int> {
    match kind {
        Kind::Half => Ok(5),
        Kind::Float => Ok(6),
        Kind::BFloat16 => Ok(15),
        other => Err(Error::argument("kind", format!("{other:?}"), "Half, Float or BFloat16")),
    }
}

/// `tensor` ([N, C, H, W]) stored as N, H, W, C; no copy if it already is.
pub(crate) fn channels_last(tensor: &Tensor) -> Result<Tensor> {
    // SAFETY: a live tensor; the shim only reads it.
    tensor_from(unsafe { ringtune_channels_last(tensor.as_ptr()) })
}

/// See [`crate::attention::scaled_dot_product`]; `kernel` is a number of csrc/shim.h's `AttentionKernel`.
pub(crate) fn attention(query: &Tensor, key: &Tensor, value: &Tensor, kernel: i32) -> Result<Tensor> {
    // SAFETY: live tensors; the shim checks their shapes and only reads them (autograd keeps its own
    // references).
    tensor_from(unsafe { ringtune_attention(query.as_ptr(), key.as_ptr(), value.as_ptr(), kernel) })
}

/// The number of the fastest attention kernel that this processor has.
pub(crate) fn attention_kernel() -> i32 {
    // SAFETY: no arguments; asks for the processor's features. A failure is a number of no kernel.
    unsafe { ringtune_attention_kernel() }
}

/// Convolution weights in oneDNN's order; see csrc/shim.h.
pub(crate) fn pack_convolution(weight: &Tensor, input_size: &[i64], backward: bool) -> Result<Tensor> {
    // SAFETY: a live tensor that the shim only reads, and a live slice.
    tensor_from(unsafe {
        ringtune_pack_convolution(weight.as_ptr(), input_size.as_ptr(), input_size.len(), backward)
    })
}

/// The convolution with weights from [`pack_convolution`], with gradient for the input only.
pub(crate) fn packed_convolution(
    input: &Tensor,
    forward_weight: &Tensor,
    backward_weight: &Tensor,
    bias: &Tensor,
) -> Result<Tensor> {
    // SAFETY: live tensors; the shim only reads them (autograd keeps its own references).
    tensor_from(unsafe {
        ringtune_packed_convolution(
            input.as_ptr(),
            forward_weight.as_ptr(),
            backward_weight.as_ptr(),
            bias.as_ptr(),
        )
    })
}

/// How [`group_norm`] normalises.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupNormArguments<'a> {
    /// Scale, [channels].
    pub(crate) weight: &'a Tensor,
    /// Shift, [channels].
    pub(crate) bias: &'a Tensor,
    /// Groups of channels that share mean and variance.
    pub(crate) groups: i64,
    /// Added to the variance.
    pub(crate) epsilon: f64,
    /// Whether x · sigmoid(x) follows.
    pub(crate) silu: bool,
}

/// Group normalisation of `x` + `added`, with gradient for `x` alone.
///
/// `x`: [batch, channels, height, width]; `added`: [batch, channels]; the weights must need no gradient.
pub(crate) fn group_norm(x: &Tensor, added: Option<&Tensor>, norm: GroupNormArguments) -> Result<Tensor> {
    let [result, _] = group_norm_keeping(x, added, norm)?;
    Ok(result)
}

/// [`group_norm`], and `x` itself: where the rest of a network goes on with that one, both gradients of `x` are made and
/// added up in one sweep, and in bf16 rounded once.
pub(crate) fn group_norm_keeping(
    x: &Tensor,
    added: Option<&Tensor>,
    norm: GroupNormArguments,
) -> Result<[Tensor; 2]> {
    normalise(x, None, added, norm)
}

/// [`group_norm_keeping`] of two inputs side by side, which are never put together: [batch, channels of `x`, …] and
/// [batch, channels of `skip`, …]. Returns the result, `x` and `skip`.
pub(crate) fn group_norm_of_two(x: &Tensor, skip: &Tensor, norm: GroupNormArguments) -> Result<[Tensor; 3]> {
    normalise(x, Some(skip), None, norm)
}

/// RESULTS: 2, and 3 with `skip`.
fn normalise<const RESULTS: usize>(
    x: &Tensor,
    skip: Option<&Tensor>,
    added: Option<&Tensor>,
    norm: GroupNormArguments,
) -> Result<[Tensor; RESULTS]> {
    debug_assert_eq!(RESULTS, 2 + usize::from(skip.is_some()));
    let or_null = |tensor: Option<&Tensor>| tensor.map_or(std::ptr::null(), Tensor::as_ptr);
    let (skip, added) = (or_null(skip), or_null(added));
    let GroupNormArguments { weight, bias, groups, epsilon, silu } = norm;
    // SAFETY: live tensors (or null for none), which the shim only reads; it writes as many results as there are.
    tensors_from(|results| unsafe {
        ringtune_group_norm(
            x.as_ptr(),
            skip,
            added,
            groups,
            weight.as_ptr(),
            bias.as_ptr(),
            epsilon,
            silu,
            results,
        )
    })
}

/// Layer normalisation over the last dimension, with gradient for `x` alone, and `x` itself as in
/// [`group_norm_keeping`].
///
/// `x`: [.., width]; `weight` and `bias`: [width].
pub(crate) fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, epsilon: f64) -> Result<[Tensor; 2]> {
    // SAFETY: live tensors, which the shim only reads; it writes two results.
    tensors_from(|results| unsafe {
        ringtune_layer_norm(x.as_ptr(), weight.as_ptr(), bias.as_ptr(), epsilon, results)
    })
}

/// The first half of the last dimension times the GELU of the second, with gradient.
pub(crate) fn geglu(x: &Tensor) -> Result<Tensor> {
    // SAFETY: a live tensor; the shim only reads it.
    tensor_from(unsafe { ringtune_geglu(x.as_ptr()) })
}

/// `input` Wᵀ + bias + `residual`, with gradient for `input` and `residual`; in bf16 rounded once.
pub(crate) fn linear_add(
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    residual: &Tensor,
) -> Result<Tensor> {
    let bias = bias.map_or(std::ptr::null(), Tensor::as_ptr);
    // SAFETY: live tensors (or null for none); the shim only reads them.
    tensor_from(unsafe { ringtune_linear_add(input.as_ptr(), weight.as_ptr(), bias, residual.as_ptr()) })
}

/// [`packed_convolution`] plus `residual`, which gets a gradient too; rounded once.
pub(crate) fn packed_convolution_add(
    input: &Tensor,
    forward_weight: &Tensor,
    backward_weight: &Tensor,
    bias: &Tensor,
    residual: &Tensor,
) -> Result<Tensor> {
    // SAFETY: live tensors; the shim only reads them.
    tensor_from(unsafe {
        ringtune_packed_convolution_add(
            input.as_ptr(),
            forward_weight.as_ptr(),
            backward_weight.as_ptr(),
            bias.as_ptr(),
            residual.as_ptr(),
        )
    })
}

/// From here on libtorch keeps freed blocks for the next tensors.
pub(crate) fn install_allocator() -> Result<()> {
    // SAFETY: no arguments; blocks of the allocator before know their own way back.
    if unsafe { ringtune_install_allocator() } { Ok(()) } else { Err(last_error()) }
}

/// Gives what libtorch keeps back to the system.
pub(crate) fn release_memory() -> Result<()> {
    // SAFETY: no arguments; only blocks that no tensor uses are unmapped.
    if unsafe { ringtune_release_memory() } { Ok(()) } else { Err(last_error()) }
}

/// Sets the compute threads of operations started by the calling thread.
pub(crate) fn set_threads(threads: i32) -> Result<()> {
    // SAFETY: plain values.
    if unsafe { ringtune_set_threads(threads) } { Ok(()) } else { Err(last_error()) }
}

/// Sets the inter-operation threads; fails after parallel work has begun or when called twice.
pub(crate) fn set_interop_threads(threads: i32) -> Result<()> {
    // SAFETY: plain values.
    if unsafe { ringtune_set_interop_threads(threads) } { Ok(()) } else { Err(last_error()) }
}

/// The compute threads in use.
pub(crate) fn threads() -> usize {
    // SAFETY: no arguments.
    usize::try_from(unsafe { ringtune_get_threads() }).unwrap_or(1)
}

#[cfg(test)]
#[path = "native_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "norm_tests.rs"]
mod norm_tests;

#[cfg(test)]
#[path = "boundary_tests.rs"]
mod boundary_tests;
