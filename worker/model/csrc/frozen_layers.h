// Packed layers that kernels of our own multiply, for libtorch's tensors: on AMX those of tiled_product.h, without it
// those of vector_layers.h.
#pragma once

#include "frozen_layer.h"

#include <ATen/ATen.h>

#include <optional>

namespace ringtune::frozen {

// Whether plain weights, [outputs, inputs] or [outputs, inputs, k, k], are packed for here; the layer keeps the size.
bool takes(const at::Tensor &weight);

// Weights from weights_in_order, packed: [outputs / 32, inputs / 32, k * k, 32 * 32]. What lies where within an output's 32
// is the kernels' own business.
at::Tensor packed(const at::Tensor &ordered);

// The layer of packed weights; nothing where they are not from here.
std::optional<Layer> layer_of(const at::Tensor &packed);

// [batch, inputs, height, width] convolved, channels last; `residual` has the result's shape.
at::Tensor convolve(const at::Tensor &input, const at::Tensor &packed, const std::optional<at::Tensor> &bias,
                    const std::optional<at::Tensor> &residual);

// [.., inputs] multiplied.
at::Tensor multiply(const at::Tensor &input, const at::Tensor &packed, const std::optional<at::Tensor> &bias,
                    const std::optional<at::Tensor> &residual);

} // namespace ringtune::frozen
