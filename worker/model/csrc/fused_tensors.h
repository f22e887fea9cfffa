// What the fused operations ask of libtorch's tensors, in bf16 and in fp32.
#pragma once

#include "bf16_tensors.h"
#include "float_layers.h"

namespace ringtune {

// Whether kernels of our own take it.
inline bool is_fused(const at::Tensor &x) {
    const bool floats = x.scalar_type() == at::kFloat && x.device().is_cpu() && x.numel() > 0;
    return floats ? floats::used(floats::Family::Sweeps) : fits(x);
}

// Calls body with a number of x's kind, which is fused.
template <typename Body> auto by_kind(const at::Tensor &x, const Body &body) {
    return x.scalar_type() == at::kFloat ? body(float{}) : body(Bf16{});
}

template <typename Element> const Element *elements(const at::Tensor &tensor) {
    return static_cast<const Element *>(tensor.const_data_ptr());
}

template <typename Element> Element *mutable_elements(const at::Tensor &tensor) {
    return static_cast<Element *>(tensor.data_ptr());
}

// Handles of a norm's weight and bias, where they are trained (weight_gradient.cpp).
struct Ends {
    std::optional<at::Tensor> weight, bias;
};

// The values, with the gradient of their handle.
inline at::Tensor with_end(const at::Tensor &values, const std::optional<at::Tensor> &end) {
    return end ? values + (*end - end->detach()) : values;
}

} // namespace ringtune
