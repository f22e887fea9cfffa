// Linear layers with frozen weights. In bf16 they are packed for what multiplies, kernels of our own (frozen_layers.h) or
// oneDNN, bias and residual in the same sweep, rounded once: libtorch's own layer leaves the weights as they are, and oneDNN
// puts them in order in every call, forward and backward. In fp32 they stay where they are: libtorch's own layer asks
// another library, whose sums depend on addresses, so that weights could not be used on the mapped file.
#include "backends.h"
#include "blocks.h"
#include "few_rows.h"
#include "float_layers.h"
#include "frozen_layers.h"
#include "onednn_linear.h"
#include "shim.h"
#include "split_linear.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

namespace ringtune {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Weights are packed for a product of so many rows, and used for any number: so the packed order, which may decide
// bits, follows from the layer alone and not from what it first met.
constexpr int64_t PACKED_FOR_ROWS = 1024;

at::Tensor multiply(const at::Tensor &input, const at::Tensor &packed, const std::optional<at::Tensor> &bias) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (frozen::layer_of(packed)) {
        return frozen::multiply(input, packed, bias, std::nullopt);
    }
    RINGTUNE_RECORD("linear", input, packed);
    return onednn::linear(input.contiguous(), packed, bias);
}

at::Tensor multiply_and_add(const at::Tensor &input, const at::Tensor &residual, const at::Tensor &packed,
                            const std::optional<at::Tensor> &bias) {
    using Signature = at::Tensor(const at::Tensor &, const at::Tensor &, const at::Tensor &,
                                 const std::optional<at::Tensor> &, std::string_view);
    static const auto operation =
        c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "binary").typed<Signature>();
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (frozen::layer_of(packed)) {
        return frozen::multiply(input, packed, bias, residual);
    }
    RINGTUNE_RECORD("linear_add", input, packed, residual);
    return operation.call(input.contiguous(), residual.contiguous(), packed, bias, "add");
}

struct Linear : torch::autograd::Function<Linear> {
    static Variable forward(AutogradContext *context, const Variable &input, const Variable &weight,
                            const std::optional<at::Tensor> &bias) {
        context->saved_data["weight"] = weight;
        return multiply(input, weight, bias);
    }

    static variable_list backward(AutogradContext *context, const variable_list &gradients) {
        return {multiply(gradients[0], context->saved_data["weight"].toTensor().t(), std::nullopt), {}, {}};
    }
};

// What multiplies by fp32 weights: libtorch, or kernels of our own. Those of split_linear.h, by bf16 halves on AMX, and those of
// few_rows.h are for few rows.
enum class Multiplier : int64_t { Libtorch, Halves, FewRows, Floats };

// `halves`: whether there are few rows, which bf16 halves may stand for.
Multiplier multiplier_of(const at::Tensor &weight, bool halves) {
    if (weight.scalar_type() != at::kFloat || !weight.is_contiguous()) {
        return Multiplier::Libtorch;
    }
    if (halves && flash::wide()) {
        return flash::amx_supported() ? Multiplier::Halves : Multiplier::FewRows;
    }
    const bool floats = floats::used(floats::Family::Products) && floats::fits(weight.size(1), weight.size(0));
    return floats ? Multiplier::Floats : Multiplier::Libtorch;
}

void multiply_own(Multiplier by, const split::Sizes &sizes, const float *x, const float *weight, const float *bias,
                  float *result) {
    if (by == Multiplier::Halves) {
        split::multiply(flash::amx_backend(), sizes, x, weight, bias, result);
    } else if (by == Multiplier::FewRows) {
        few_rows::multiply(flash::vector_backend(), sizes, x, weight, bias, result);
    } else {
        const auto backend = flash::vector_backend();
        floats::multiply({backend, at::get_num_threads()}, {sizes.inputs, sizes.outputs}, floats::Way::Forward, sizes.rows,
                         {x, weight, bias, nullptr, result});
    }
}

void multiply_own_back(Multiplier by, const split::Sizes &sizes, const float *gradient, const float *weight, float *result) {
    if (by == Multiplier::Halves) {
        split::multiply_back(flash::amx_backend(), sizes, gradient, weight, result);
    } else if (by == Multiplier::FewRows) {
        few_rows::multiply_back(flash::vector_backend(), sizes, gradient, weight, result);
    } else {
        const auto backend = flash::vector_backend();
        floats::multiply({backend, at::get_num_threads()}, {sizes.outputs, sizes.inputs}, floats::Way::Backward, sizes.rows,
                         {gradient, weight, nullptr, nullptr, result});
    }
}

// In fp32 by one of them.
struct OwnLinear : torch::autograd::Function<OwnLinear> {
    static Variable forward(AutogradContext *context, const Variable &input, const Variable &weight,
                            const std::optional<at::Tensor> &bias, Multiplier by) {
        context->saved_data["weight"] = weight;
        context->saved_data["by"] = static_cast<int64_t>(by);
        at::AutoDispatchBelowADInplaceOrView below_autograd;
        RINGTUNE_RECORD("linear", input, weight);
        auto shape = input.sizes().vec();
        shape.back() = weight.size(0);
        const at::Tensor x = input.contiguous(), result = at::empty(shape, input.options());
        const at::Tensor offset = bias ? bias->contiguous() : at::Tensor();
        const split::Sizes sizes{input.numel() / weight.size(1), weight.size(1), weight.size(0)};
        multiply_own(by, sizes, x.const_data_ptr<float>(), weight.const_data_ptr<float>(),
                     bias ? offset.const_data_ptr<float>() : nullptr, result.mutable_data_ptr<float>());
        return result;
    }

    static variable_list backward(AutogradContext *context, const variable_list &gradients) {
        const at::Tensor weight = context->saved_data["weight"].toTensor(), gradient = gradients[0].contiguous();
        RINGTUNE_RECORD("linear", gradient, weight);
        auto shape = gradient.sizes().vec();
        shape.back() = weight.size(1);
        const at::Tensor result = at::empty(shape, gradient.options());
        const split::Sizes sizes{gradient.numel() / weight.size(0), weight.size(1), weight.size(0)};
        multiply_own_back(static_cast<Multiplier>(context->saved_data["by"].toInt()), sizes,
                          gradient.const_data_ptr<float>(), weight.const_data_ptr<float>(),
                          result.mutable_data_ptr<float>());
        return {result, {}, {}, {}};
    }
};

struct PackedLinear : torch::autograd::Function<PackedLinear> {
    static Variable forward(AutogradContext *context, const Variable &input, const std::optional<at::Tensor> &residual,
                            const Variable &forward_weight, const std::optional<at::Tensor> &backward_weight,
                            const std::optional<at::Tensor> &bias) {
        if (backward_weight) {
            context->saved_data["weight"] = *backward_weight;
        }
        return residual ? multiply_and_add(input, *residual, forward_weight, bias)
                        : multiply(input, forward_weight, bias);
    }

    static variable_list backward(AutogradContext *context, const variable_list &gradients) {
        variable_list results(5);
        if (context->needs_input_grad(0)) {
            results[0] = multiply(gradients[0], context->saved_data["weight"].toTensor(), std::nullopt);
        }
        if (context->needs_input_grad(1)) {
            results[1] = gradients[0];
        }
        return results;
    }
};

// input [.., inputs] times weightT [inputs, outputs] + bias.
at::Tensor linear(const at::Tensor &input, const at::Tensor &weight, const std::optional<at::Tensor> &bias,
                  bool halves) {
    check_frozen("a linear layer", "weights", weight);
    check_frozen("a linear layer", "bias", bias.value_or(at::Tensor()));
    TORCH_CHECK(weight.dim() == 2 && input.dim() >= 2 && input.size(-1) == weight.size(1) && input.numel() > 0 &&
                    input.scalar_type() == weight.scalar_type(),
                "a linear layer with ", weight.scalar_type(), " weights ", weight.sizes(), " cannot take ",
                input.scalar_type(), " ", input.sizes());
    TORCH_CHECK(!bias || (bias->dim() == 1 && bias->size(0) == weight.size(0)), "a linear layer with weights ",
                weight.sizes(), " cannot have a bias of ", bias->sizes());
    const Multiplier by = multiplier_of(weight, halves);
    if (by != Multiplier::Libtorch) {
        return OwnLinear::apply(input, weight, bias, by);
    }
    return Linear::apply(input, weight, bias);
}

// [to, from] of packed weights, wherever they are multiplied.
std::vector<int64_t> packed_sizes(const at::Tensor &packed) {
    const auto layer = frozen::layer_of(packed);
    if (layer && layer->side == 1) {
        return {layer->outputs, layer->inputs};
    }
    TORCH_CHECK(packed.is_mkldnn() && packed.dim() == 2, "a packed linear layer takes packed weights");
    return packed.sizes().vec();
}

void check_packed_linear(const at::Tensor &input, const std::optional<at::Tensor> &residual,
                         const at::Tensor &forward_weight, const std::optional<at::Tensor> &backward_weight,
                         const std::optional<at::Tensor> &bias) {
    check_frozen("a packed linear layer", "forward weights", forward_weight);
    check_frozen("a packed linear layer", "backward weights", backward_weight.value_or(at::Tensor()));
    check_frozen("a packed linear layer", "bias", bias.value_or(at::Tensor()));
    const auto sizes = packed_sizes(forward_weight);
    const int64_t outputs = sizes[0], inputs = sizes[1];
    TORCH_CHECK(!backward_weight || packed_sizes(*backward_weight) == std::vector<int64_t>({inputs, outputs}),
                "a packed linear layer from ", inputs, " to ", outputs, " features takes backward weights of ", inputs,
                " and ", outputs, ", not ", at::IntArrayRef(packed_sizes(*backward_weight)));
    TORCH_CHECK(backward_weight || !input.requires_grad() || !at::GradMode::is_enabled(),
                "a packed linear layer without backward weights has no gradient for its input");
    TORCH_CHECK(!bias || (bias->dim() == 1 && bias->size(0) == outputs), "a packed linear layer with ", outputs,
                " outputs cannot have a bias of ", bias->sizes());
    TORCH_CHECK(input.dim() >= 2 && input.size(-1) == inputs && input.numel() > 0 &&
                    input.scalar_type() == at::kBFloat16,
                "a packed linear layer takes bf16 [.., ", inputs, "], not ", input.scalar_type(), " ", input.sizes());
    if (residual) {
        auto result = input.sizes().vec();
        result.back() = outputs;
        TORCH_CHECK(residual->sizes() == at::IntArrayRef(result) && residual->scalar_type() == at::kBFloat16,
                    "a packed linear layer with the result ", at::IntArrayRef(result), " cannot add ",
                    residual->scalar_type(), " ", residual->sizes());
    }
}

at::Tensor pack_linear(const at::Tensor &weight, bool backward) {
    check_frozen("packing a linear layer", "weights", weight);
    TORCH_CHECK(weight.dim() == 2 && weight.numel() > 0 && weight.scalar_type() == at::kBFloat16 && !weight.is_mkldnn(),
                "a linear layer's weights to pack are bf16 [outputs, inputs], not ", weight.scalar_type(), " ",
                weight.sizes());
    at::NoGradGuard no_gradient;
    const at::Tensor ordered = backward ? weights_in_order(weight, true) : weight.contiguous();
    if (frozen::takes(weight)) {
        return frozen::packed(ordered);
    }
    const blocks::Lasting lasting;
    return onednn::ordered(ordered, PACKED_FOR_ROWS);
}

} // namespace

} // namespace ringtune

extern "C" {

at::Tensor *ringtune_linear(const at::Tensor *input, const at::Tensor *weight, const at::Tensor *bias, bool halves) {
    return ringtune::guarded<at::Tensor *>(
        nullptr, [&] { return new at::Tensor(ringtune::linear(*input, *weight, ringtune::present(bias), halves)); });
}

at::Tensor *ringtune_pack_linear(const at::Tensor *weight, bool backward) {
    return ringtune::guarded<at::Tensor *>(nullptr,
                                           [&] { return new at::Tensor(ringtune::pack_linear(*weight, backward)); });
}

at::Tensor *ringtune_packed_linear(const at::Tensor *input, const at::Tensor *forward_weight,
                                   const at::Tensor *backward_weight, const at::Tensor *bias,
                                   const at::Tensor *residual) {
    return ringtune::guarded<at::Tensor *>(nullptr, [&] {
        const auto backward = ringtune::present(backward_weight), offset = ringtune::present(bias),
                   added = ringtune::present(residual);
        ringtune::check_packed_linear(*input, added, *forward_weight, backward, offset);
        return new at::Tensor(ringtune::PackedLinear::apply(*input, added, *forward_weight, backward, offset));
    });
}

} // extern "C"
