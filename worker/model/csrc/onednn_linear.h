// oneDNN's linear layer, as libtorch has it for its own compiler.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace ringtune::onednn {

// bf16 weights [outputs, inputs] in oneDNN's order for a product of so many rows; they may be used for any number.
inline at::Tensor ordered(const at::Tensor &weight, int64_t rows) {
    using Signature = at::Tensor(const at::Tensor &, std::optional<int64_t>);
    static const auto operation =
        c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_reorder_linear_weight", "").typed<Signature>();
    return operation.call(weight, rows);
}

// x [.., inputs], contiguous, by weights [outputs, inputs], in order or not, plus a bias in the same sweep.
inline at::Tensor linear(const at::Tensor &x, const at::Tensor &weight, const std::optional<at::Tensor> &bias) {
    using Signature = at::Tensor(const at::Tensor &, const at::Tensor &, const std::optional<at::Tensor> &,
                                 std::string_view, c10::List<std::optional<at::Scalar>>,
                                 std::optional<std::string_view>);
    static const auto operation =
        c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<Signature>();
    return operation.call(x, weight, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

} // namespace ringtune::onednn
