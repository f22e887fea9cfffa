//! The boundary to `csrc/`: what libtorch can do and tch does not reach. `csrc/shim.h` declares the same.

use std::ffi::{CStr, c_char, c_int, c_void};

use tch::{Kind, TchError, Tensor};
use torch_sys::C_tensor;

use crate::error::{Error, Result};

mod convolutions;
mod instructions;
mod norms;
mod threads;
mod trained;

pub(crate) use convolutions::{
    ConvolutionArguments, ConvolutionGeometry, PlainConvolution, convolution, convolution_has_kernels,
    pack_convolution, packed_convolution,
};
pub(crate) use instructions::{instruction_set, limit_instructions, use_floats_with_avx512};
pub(crate) use norms::{GroupNormArguments, group_norm, group_norm_keeping, group_norm_of_two, layer_norm};
pub(crate) use threads::{place_threads, set_interop_threads, set_threads, settle_threads, threads};
pub(crate) use trained::{Trained, gradients, with_weight_gradient};

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
    fn ringtune_self_attention(together: *const C_tensor, kernel: c_int) -> *mut C_tensor;
    fn ringtune_attention_kernel() -> c_int;
    fn ringtune_instructions() -> c_int;
    fn ringtune_limit_instructions(most: c_int);
    fn ringtune_use_floats_with_avx512(all: bool);
    fn ringtune_group_norm(
        x: *const C_tensor,
        skip: *const C_tensor,
        added: *const C_tensor,
        groups: i64,
        weight: *const C_tensor,
        bias: *const C_tensor,
        weight_end: *const C_tensor,
        bias_end: *const C_tensor,
        epsilon: f64,
        silu: bool,
        results: *mut *mut C_tensor,
    ) -> bool;
    fn ringtune_layer_norm(
        x: *const C_tensor,
        weight: *const C_tensor,
        bias: *const C_tensor,
        weight_end: *const C_tensor,
        bias_end: *const C_tensor,
        epsilon: f64,
        results: *mut *mut C_tensor,
    ) -> bool;
    fn ringtune_geglu(x: *const C_tensor) -> *mut C_tensor;
    fn ringtune_pack_convolution(
        weight: *const C_tensor,
        input_size: *const i64,
        dimensions: usize,
        stride: i64,
        padding: i64,
        transposed: bool,
        backward: bool,
    ) -> *mut C_tensor;
    fn ringtune_packed_convolution(
        input: *const C_tensor,
        forward_weight: *const C_tensor,
        backward_weight: *const C_tensor,
        bias: *const C_tensor,
        residual: *const C_tensor,
        stride: i64,
        padding: i64,
        transposed: bool,
    ) -> *mut C_tensor;
    fn ringtune_convolution_has_kernels(
        inputs: i64,
        outputs: i64,
        side: i64,
        stride: i64,
        padding: i64,
    ) -> bool;
    fn ringtune_convolution(
        input: *const C_tensor,
        weight: *const C_tensor,
        bias: *const C_tensor,
        residual: *const C_tensor,
        stride: i64,
        padding: i64,
    ) -> *mut C_tensor;
    fn ringtune_linear(
        input: *const C_tensor,
        weight: *const C_tensor,
        bias: *const C_tensor,
        halves: bool,
    ) -> *mut C_tensor;
    fn ringtune_pack_linear(weight: *const C_tensor, backward: bool) -> *mut C_tensor;
    fn ringtune_packed_linear(
        input: *const C_tensor,
        forward_weight: *const C_tensor,
        backward_weight: *const C_tensor,
        bias: *const C_tensor,
        residual: *const C_tensor,
    ) -> *mut C_tensor;
    fn ringtune_with_weight_gradient(
        result: *const C_tensor,
        input: *const C_tensor,
        first: *const C_tensor,
        second: *const C_tensor,
        third: *const C_tensor,
        bias: *const C_tensor,
        parts: i64,
        side: i64,
        stride: i64,
        padding: i64,
    ) -> *mut C_tensor;
    fn ringtune_gradients(
        output: *const C_tensor,
        gradient: *const C_tensor,
        ends: *mut *mut C_tensor,
        count: usize,
        results: *mut *mut C_tensor,
    ) -> bool;
    fn ringtune_install_allocator() -> bool;
    fn ringtune_release_memory() -> bool;
    fn ringtune_trim_memory() -> bool;
    fn ringtune_reserve_memory(bytes: usize) -> bool;
    fn ringtune_profile_start() -> bool;
    fn ringtune_profile_stop() -> *mut c_char;
    fn ringtune_scope_begin(name: *const c_char) -> *mut c_void;
    fn ringtune_scope_end(scope: *mut c_void);
    fn ringtune_place_threads(processors: *const c_int, count: usize) -> bool;
    fn ringtune_settle_threads() -> bool;
    fn ringtune_set_threads(threads: c_int) -> bool;
    fn ringtune_set_interop_threads(threads: c_int) -> bool;
    fn ringtune_get_threads() -> c_int;
    fn ringtune_cpu_capability() -> *mut c_char;
    fn ringtune_free_string(text: *mut c_char);
}

/// The message of the last failed shim call of this thread, as an error.
pub(crate) fn last_error() -> Error {
    // SAFETY: the shim returns a NUL-terminated string owned by this thread, alive until its next failed call.
    let message = unsafe { CStr::from_ptr(ringtune_last_error()) };
    Error::Torch(TchError::Torch(message.to_string_lossy().into_owned()))
}

/// Takes ownership of a tensor made by the shim; null means failure.
pub(crate) fn tensor_from(pointer: *mut C_tensor) -> Result<Tensor> {
    if pointer.is_null() {
        return Err(last_error());
    }
    // SAFETY: a non-null result is a heap-allocated at::Tensor that nobody else owns.
    Ok(unsafe { Tensor::from_ptr(pointer) })
}

/// Takes ownership of the tensors that `fill` wrote; false means failure.
pub(crate) fn tensors_from<const COUNT: usize>(
    fill: impl FnOnce(*mut *mut C_tensor) -> bool,
) -> Result<[Tensor; COUNT]> {
    let mut pointers = [std::ptr::null_mut(); COUNT];
    if !fill(pointers.as_mut_ptr()) {
        return Err(last_error());
    }
    // SAFETY: after a success all are heap-allocated at::Tensors that nobody else owns.
    Ok(pointers.map(|pointer| unsafe { Tensor::from_ptr(pointer) }))
}

/// Result of a call without a value.
pub(crate) fn done(success: bool) -> Result<()> {
    if success { Ok(()) } else { Err(last_error()) }
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
/// nobody may write to the tensor but where `data` is valid for writes too, and nobody else's.
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

/// A tensor over `data` that owns nothing.
///
/// # Safety
/// As [`tensor_over`], as long as the tensor or a view of it is alive; whoever writes to it must be allowed to.
pub(crate) unsafe fn tensor_over_raw(data: *mut u8, shape: &[i64], kind: Kind) -> Result<Tensor> {
    extern "C" fn nothing(_: *mut c_void) {}
    let (data, kind, nobody) = (data.cast(), scalar_type(kind)?, std::ptr::null_mut());
    // SAFETY: the caller vouches for `data`; shape is a live slice.
    tensor_from(unsafe { ringtune_from_blob(data, shape.as_ptr(), shape.len(), kind, nobody, nothing) })
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

/// See [`crate::attention::self_attention`].
pub(crate) fn self_attention(together: &Tensor, kernel: i32) -> Result<Tensor> {
    // SAFETY: a live tensor; the shim checks its shape and only reads it.
    tensor_from(unsafe { ringtune_self_attention(together.as_ptr(), kernel) })
}

/// The number of the fastest attention kernel that may be used here.
pub(crate) fn attention_kernel() -> i32 {
    // SAFETY: no arguments. A failure is a number of no kernel.
    unsafe { ringtune_attention_kernel() }
}

/// The first half of the last dimension times the GELU of the second, with gradient.
pub(crate) fn geglu(x: &Tensor) -> Result<Tensor> {
    // SAFETY: a live tensor; the shim only reads it.
    tensor_from(unsafe { ringtune_geglu(x.as_ptr()) })
}

/// Implementations of fp32 products of linear layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    /// In fp32: with AVX2, and with AVX-512 where they are faster than libtorch, by kernels of our own, where the widths fit them.
    Exact,
    /// On a processor with AMX: by bf16 halves of each value, three products for one, in a fraction of the time. They are
    /// off by about 2^-16, a hundredth of what bf16 is off by. Elsewhere in fp32, where the processor has AVX-512 by
    /// kernels of our own for few rows.
    Halves,
}

/// `input` Wᵀ + bias, with gradient for `input`. `weight`: [outputs, inputs], not packed, wherever it lies: the
/// sums do not depend on addresses, as those of libtorch's own layer do in fp32.
pub(crate) fn linear(
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    products: Products,
) -> Result<Tensor> {
    let halves = products == Products::Halves;
    let bias = bias.map_or(std::ptr::null(), Tensor::as_ptr);
    // SAFETY: live tensors (or null for none); the shim only reads them (autograd keeps its own references).
    tensor_from(unsafe { ringtune_linear(input.as_ptr(), weight.as_ptr(), bias, halves) })
}

/// bf16 weights [outputs, inputs] in the order of what multiplies by them, for the way forward or for the gradient's way back.
pub(crate) fn pack_linear(weight: &Tensor, backward: bool) -> Result<Tensor> {
    // SAFETY: a live tensor that the shim only reads.
    tensor_from(unsafe { ringtune_pack_linear(weight.as_ptr(), backward) })
}

/// Weights of [`packed_linear`], from [`pack_linear`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackedLinear<'a> {
    pub(crate) forward: &'a Tensor,
    /// None: the input gets no gradient.
    pub(crate) backward: Option<&'a Tensor>,
    /// [outputs], bf16.
    pub(crate) bias: Option<&'a Tensor>,
}

/// `input` Wᵀ + bias + `residual`, with gradient for `input` and `residual`; rounded once. All bf16.
pub(crate) fn packed_linear(
    input: &Tensor,
    layer: PackedLinear,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let or_null = |tensor: Option<&Tensor>| tensor.map_or(std::ptr::null(), Tensor::as_ptr);
    let (backward, bias, residual) = (or_null(layer.backward), or_null(layer.bias), or_null(residual));
    // SAFETY: live tensors (or null for none); the shim only reads them (autograd keeps its own references).
    tensor_from(unsafe {
        ringtune_packed_linear(input.as_ptr(), layer.forward.as_ptr(), backward, bias, residual)
    })
}

/// From here on libtorch keeps freed blocks for the next tensors.
pub(crate) fn install_allocator() -> Result<()> {
    // SAFETY: no arguments; blocks of the allocator before know their own way back.
    done(unsafe { ringtune_install_allocator() })
}

/// Gives what libtorch keeps back to the system.
pub(crate) fn release_memory() -> Result<()> {
    // SAFETY: no arguments; only blocks that no tensor uses are unmapped.
    done(unsafe { ringtune_release_memory() })
}

/// The same, but for what is kept anyway while few tensors live (3 GB with these), for tensors of other sizes.
pub(crate) fn trim_memory() -> Result<()> {
    // SAFETY: as above.
    done(unsafe { ringtune_trim_memory() })
}

/// Has the system clear so many bytes for tensors to come; less, where that is more than is kept, or than there is.
pub(crate) fn reserve_memory(bytes: usize) -> Result<()> {
    // SAFETY: a number only; the memory that is written to is nobody else's.
    done(unsafe { ringtune_reserve_memory(bytes) })
}

/// Records what operators take until [`profile_stop`].
pub(crate) fn profile_start() -> Result<()> {
    // SAFETY: no arguments.
    done(unsafe { ringtune_profile_start() })
}

/// The recording, in the format of csrc/profile.cpp.
pub(crate) fn profile_stop() -> Result<String> {
    // SAFETY: a fresh NUL-terminated string (or null where it failed), freed right after the copy.
    unsafe {
        let text = ringtune_profile_stop();
        if text.is_null() {
            return Err(last_error());
        }
        let owned = CStr::from_ptr(text).to_string_lossy().into_owned();
        ringtune_free_string(text);
        Ok(owned)
    }
}

/// A stretch in what is recorded; null where nothing is.
pub(crate) fn scope_begin(name: &'static CStr) -> *mut c_void {
    // SAFETY: a NUL-terminated string that is never freed.
    unsafe { ringtune_scope_begin(name.as_ptr()) }
}

/// Ends what [`scope_begin`] began: once, and on the same thread.
pub(crate) fn scope_end(scope: *mut c_void) {
    // SAFETY: null, which is nothing, or what scope_begin gave; its only caller drops it once, on its thread.
    unsafe { ringtune_scope_end(scope) }
}

#[cfg(test)]
#[path = "../native_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "../norm_tests.rs"]
mod norm_tests;

#[cfg(test)]
#[path = "../boundary_tests.rs"]
mod boundary_tests;
