// A linear layer plus what is added to its result, rounded to bf16 once instead of twice, and in one pass.
#include "shim.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

namespace ringtune {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

at::Tensor linear_and_add(const at::Tensor &input, const at::Tensor &residual, const at::Tensor &weight,
                          const std::optional<at::Tensor> &bias) {
    using Signature = at::Tensor(const at::Tensor &, const at::Tensor &, const at::Tensor &,
                                 const std::optional<at::Tensor> &, std::string_view);
    static const auto operation =
        c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "binary").typed<Signature>();
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    RINGTUNE_RECORD("linear_add", input, weight, residual);
    return operation.call(input, residual, weight, bias, "add");
}

struct LinearAdd : torch::autograd::Function<LinearAdd> {
    static Variable forward(AutogradContext *context, const Variable &input, const Variable &residual,
                            const Variable &weight, const std::optional<at::Tensor> &bias) {
        context->saved_data["weight"] = weight;
        return linear_and_add(input.contiguous(), residual.contiguous(), weight, bias);
    }

    static variable_list backward(AutogradContext *context, const variable_list &gradients) {
        variable_list results(4);
        if (context->needs_input_grad(0)) {
            results[0] = at::matmul(gradients[0], context->saved_data["weight"].toTensor());
        }
        if (context->needs_input_grad(1)) {
            results[1] = gradients[0];
        }
        return results;
    }
};

// input [.., inputs] times weightT [inputs, outputs] + bias + residual [.., outputs]. Weights have no gradient.
at::Tensor linear_add(const at::Tensor &input, const at::Tensor &weight, const std::optional<at::Tensor> &bias,
                      const at::Tensor &residual) {
    check_frozen("a linear layer that adds", "weights", weight);
    check_frozen("a linear layer that adds", "bias", bias.value_or(at::Tensor()));
    TORCH_CHECK(weight.dim() == 2 && input.dim() >= 1 && input.size(-1) == weight.size(1),
                "a linear layer with weights ", weight.sizes(), " cannot take ", input.sizes());
    TORCH_CHECK(!bias || (bias->dim() == 1 && bias->size(0) == weight.size(0)), "a linear layer with weights ",
                weight.sizes(), " cannot have a bias of ", bias->sizes());
    auto result = input.sizes().vec();
    result.back() = weight.size(0);
    TORCH_CHECK(residual.sizes() == at::IntArrayRef(result), "a linear layer with the result ",
                at::IntArrayRef(result), " cannot add ", residual.sizes());
    if (input.scalar_type() == at::kBFloat16 && residual.scalar_type() == at::kBFloat16 && input.numel() > 0) {
        return LinearAdd::apply(input, residual, weight, bias);
    }
    return at::linear(input, weight, bias) + residual;
}

} // namespace

} // namespace ringtune

extern "C" at::Tensor *ringtune_linear_add(const at::Tensor *input, const at::Tensor *weight,
                                           const at::Tensor *bias, const at::Tensor *residual) {
    return ringtune::guarded<at::Tensor *>(nullptr, [&] {
        const auto offset = bias == nullptr ? std::nullopt : std::optional<at::Tensor>(*bias);
        return new at::Tensor(ringtune::linear_add(*input, *weight, offset, *residual));
    });
}
