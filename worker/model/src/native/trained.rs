//! What training the weights of a network asks of libtorch.

use tch::Tensor;
use torch_sys::C_tensor;

use super::{done, ringtune_gradients, ringtune_with_weight_gradient, tensor_from};
use crate::error::Result;

/// Handles of what is trained of a layer: csrc/weight_gradient.cpp.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trained<'a> {
    /// Of each of the weights that lie one above the other, up to 3.
    pub(crate) weights: Vec<Option<&'a Tensor>>,
    pub(crate) bias: Option<&'a Tensor>,
    /// Side of a convolution's kernel; 0: the layer is linear.
    pub(crate) side: i64,
    /// Of a convolution.
    pub(crate) stride: i64,
    pub(crate) padding: i64,
}

/// The result of a layer as it is, behind which the gradients of its trained weights are made. `input`: what the layer took.
pub(crate) fn with_weight_gradient(result: &Tensor, input: &Tensor, trained: &Trained) -> Result<Tensor> {
    let Trained { weights, bias, side, stride, padding } = trained;
    let or_null = |tensor: Option<&Tensor>| tensor.map_or(std::ptr::null(), Tensor::as_ptr);
    let [first, second, third] = [0, 1, 2].map(|part| or_null(weights.get(part).copied().flatten()));
    // SAFETY: live tensors (or null for none); the shim only reads them (autograd keeps its own references).
    tensor_from(unsafe {
        ringtune_with_weight_gradient(
            result.as_ptr(),
            input.as_ptr(),
            first,
            second,
            third,
            or_null(*bias),
            weights.len() as i64,
            *side,
            *stride,
            *padding,
        )
    })
}

/// The gradients of `ends`, given that of `output`; none of what has none. The graph of `output` is gone then.
pub(crate) fn gradients(output: &Tensor, gradient: &Tensor, ends: &[&Tensor]) -> Result<Vec<Option<Tensor>>> {
    let mut pointers: Vec<*mut C_tensor> = ends.iter().map(|end| end.as_ptr().cast_mut()).collect();
    let mut results = vec![std::ptr::null_mut(); ends.len()];
    // SAFETY: live tensors, which the shim only reads; it writes as many results as there are ends.
    done(unsafe {
        ringtune_gradients(
            output.as_ptr(),
            gradient.as_ptr(),
            pointers.as_mut_ptr(),
            ends.len(),
            results.as_mut_ptr(),
        )
    })?;
    // SAFETY: after a success all are heap-allocated at::Tensors that nobody else owns.
    let results = results.into_iter().map(|pointer| unsafe { Tensor::from_ptr(pointer) });
    Ok(results.map(|result| result.defined().then_some(result)).collect())
}
