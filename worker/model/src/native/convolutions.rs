//! Convolutions with frozen weights, packed and plain.

use tch::Tensor;

use super::{
    ringtune_convolution, ringtune_convolution_has_kernels, ringtune_pack_convolution,
    ringtune_packed_convolution, tensor_from,
};
use crate::error::Result;

/// Geometry of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConvolutionGeometry {
    /// Step between outputs, 1 or 2; of a transposed one, between what two neighbours of the input reach.
    pub(crate) stride: i64,
    /// Zeros around the input; of a transposed one, what is cut off around the output.
    pub(crate) padding: i64,
    /// Whether each place of the input reaches several of the output, instead of the other way round.
    pub(crate) transposed: bool,
}

/// Arguments of [`packed_convolution`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConvolutionArguments<'a> {
    /// Weights from [`pack_convolution`].
    pub(crate) forward: &'a Tensor,
    /// Weights of the backward pass; needed if the input wants a gradient.
    pub(crate) backward: Option<&'a Tensor>,
    /// [outputs].
    pub(crate) bias: &'a Tensor,
    /// Added to the result, of its shape; rounded once with it.
    pub(crate) residual: Option<&'a Tensor>,
    /// Geometry that the weights were packed for.
    pub(crate) geometry: ConvolutionGeometry,
}

/// Convolution weights [outputs, inputs, k, k], or [inputs, outputs, k, k] of a transposed one, in the order of what
/// convolves inputs (or, `backward`, gradients) of this size; see csrc/shim.h.
pub(crate) fn pack_convolution(
    weight: &Tensor,
    input_size: &[i64],
    geometry: ConvolutionGeometry,
    backward: bool,
) -> Result<Tensor> {
    let ConvolutionGeometry { stride, padding, transposed } = geometry;
    let (size, dimensions) = (input_size.as_ptr(), input_size.len());
    // SAFETY: a live tensor that the shim only reads, and a live slice.
    tensor_from(unsafe {
        ringtune_pack_convolution(weight.as_ptr(), size, dimensions, stride, padding, transposed, backward)
    })
}

/// The convolution with weights from [`pack_convolution`], with gradient for the input and the residual.
pub(crate) fn packed_convolution(input: &Tensor, arguments: ConvolutionArguments) -> Result<Tensor> {
    let or_null = |tensor: Option<&Tensor>| tensor.map_or(std::ptr::null(), Tensor::as_ptr);
    let ConvolutionArguments { forward, backward, bias, residual, geometry } = arguments;
    // SAFETY: live tensors (or null for none); the shim only reads them (autograd keeps its own references).
    tensor_from(unsafe {
        ringtune_packed_convolution(
            input.as_ptr(),
            forward.as_ptr(),
            or_null(backward),
            bias.as_ptr(),
            or_null(residual),
            geometry.stride,
            geometry.padding,
            geometry.transposed,
        )
    })
}

/// Arguments of [`convolution`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlainConvolution<'a> {
    /// [outputs, inputs, k, k], not packed; one of all types with the input.
    pub(crate) weight: &'a Tensor,
    /// [outputs].
    pub(crate) bias: &'a Tensor,
    /// Added to the result, of its shape.
    pub(crate) residual: Option<&'a Tensor>,
    /// Step between outputs.
    pub(crate) stride: i64,
    /// Zeros around the input.
    pub(crate) padding: i64,
}

/// Whether a layer with fp32 weights [outputs, inputs, side, side] is computed by kernels of our own, on a processor with AVX2
/// and no AVX-512: 3x3 and 1x1 kernels that keep the size, where both numbers of channels are multiples of 16. They read
/// weights as they lie in a file; libtorch, which has all others, is fastest with weights that lie channels-last.
pub(crate) fn convolution_has_kernels([outputs, inputs, side]: [i64; 3], stride: i64, padding: i64) -> bool {
    // SAFETY: numbers only; it asks for the processor's features.
    unsafe { ringtune_convolution_has_kernels(inputs, outputs, side, stride, padding) }
}

/// `input` convolved, with gradient for it and the residual; right with weights in either order.
pub(crate) fn convolution(input: &Tensor, layer: PlainConvolution) -> Result<Tensor> {
    let PlainConvolution { weight, bias, residual, stride, padding } = layer;
    let residual = residual.map_or(std::ptr::null(), Tensor::as_ptr);
    // SAFETY: live tensors (or null for none); the shim only reads them (autograd keeps its own references).
    tensor_from(unsafe {
        ringtune_convolution(input.as_ptr(), weight.as_ptr(), bias.as_ptr(), residual, stride, padding)
    })
}
