// A convolution with frozen weights in oneDNN's own order. libtorch's convolution puts the weights into that
// order at every call, forward and backward; where weights are large and pictures small this takes longer than
// the convolution.

#include "shim.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/mkldnn_reorder_conv2d_weight.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

namespace ringtune {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr int64_t ONE[2] = {1, 1};

// oneDNN's convolution of a dense input with packed weights; channels-last in and out.
at::Tensor convolve(const at::Tensor &input, const at::Tensor &packed, const std::optional<at::Tensor> &bias) {
    using Signature = at::Tensor(const at::Tensor &, const at::Tensor &, const std::optional<at::Tensor> &,
                                 at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, int64_t, std::string_view,
                                 c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
    static const auto operation = c10::Dispatcher::singleton()
                                      .findSchemaOrThrow("mkldnn::_convolution_pointwise", "")
                                      .typed<Signature>();
    const int64_t padding[2] = {packed.size(2) / 2, packed.size(3) / 2};
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    RINGTUNE_RECORD("convolution", input, packed);
    return operation.call(input, packed, bias, padding, ONE, ONE, 1, "none", c10::List<std::optional<at::Scalar>>(), "");
}

// The same plus `residual`, which has the output's shape; rounded once.
at::Tensor convolve_and_add(const at::Tensor &input, const at::Tensor &residual, const at::Tensor &packed,
                            const at::Tensor &bias) {
    using Signature = at::Tensor(const at::Tensor &, const at::Tensor &, const at::Tensor &,
                                 const std::optional<at::Tensor> &, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef,
                                 int64_t, std::string_view, std::optional<at::Scalar>, std::optional<std::string_view>,
                                 c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
    static const auto operation = c10::Dispatcher::singleton()
                                      .findSchemaOrThrow("mkldnn::_convolution_pointwise", "binary")
                                      .typed<Signature>();
    const int64_t padding[2] = {packed.size(2) / 2, packed.size(3) / 2};
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    RINGTUNE_RECORD("convolution_add", input, residual, packed);
    return operation.call(input, residual.contiguous(at::MemoryFormat::ChannelsLast), packed, bias, padding, ONE, ONE, 1,
                          "add", at::Scalar(1.0), std::nullopt, c10::List<std::optional<at::Scalar>>(), std::nullopt);
}

struct PackedConvolution : torch::autograd::Function<PackedConvolution> {
    static Variable forward(AutogradContext *context, const Variable &input, const Variable &forward_weight,
                            const Variable &backward_weight, const Variable &bias) {
        context->saved_data["weight"] = backward_weight;
        return convolve(input, forward_weight, bias);
    }

    static variable_list backward(AutogradContext *context, const variable_list &gradients) {
        return {convolve(gradients[0], context->saved_data["weight"].toTensor(), std::nullopt), {}, {}, {}};
    }
};

struct PackedConvolutionAdd : torch::autograd::Function<PackedConvolutionAdd> {
    static Variable forward(AutogradContext *context, const Variable &input, const Variable &residual,
                            const Variable &forward_weight, const Variable &backward_weight, const Variable &bias) {
        context->saved_data["weight"] = backward_weight;
        return convolve_and_add(input, residual, forward_weight, bias);
    }

    static variable_list backward(AutogradContext *context, const variable_list &gradients) {
        variable_list results(5);
        if (context->needs_input_grad(0)) {
            results[0] = convolve(gradients[0], context->saved_data["weight"].toTensor(), std::nullopt);
        }
        if (context->needs_input_grad(1)) {
            results[1] = gradients[0];
        }
        return results;
    }
};

// What both convolutions ask of their weights; sizes are those of the weights before they were packed.
void check_packed(const at::Tensor &input, const at::Tensor &forward_weight, const at::Tensor &backward_weight,
                  const at::Tensor &bias) {
    check_frozen("a packed convolution", "forward weights", forward_weight);
    check_frozen("a packed convolution", "backward weights", backward_weight);
    check_frozen("a packed convolution", "bias", bias);
    TORCH_CHECK(forward_weight.is_mkldnn() && backward_weight.is_mkldnn() && forward_weight.dim() == 4 &&
                    backward_weight.dim() == 4,
                "a packed convolution takes packed weights");
    const int64_t outputs = forward_weight.size(0), inputs = forward_weight.size(1);
    TORCH_CHECK(backward_weight.size(0) == inputs && backward_weight.size(1) == outputs && bias.dim() == 1 &&
                    bias.size(0) == outputs,
                "a packed convolution from ", inputs, " to ", outputs, " channels takes backward weights of ", inputs,
                " and ", outputs, " and a bias of ", outputs, ", not ", backward_weight.sizes(), " and ",
                bias.sizes());
    TORCH_CHECK(input.dim() == 4 && input.size(1) == inputs, "a packed convolution takes [batch, ", inputs,
                ", height, width], not ", input.sizes());
}

} // namespace

at::Tensor pack_convolution(const at::Tensor &weight, at::IntArrayRef input_size, bool backward) {
    check_frozen("packing a convolution", "weights", weight);
    TORCH_CHECK(weight.dim() == 4, "a convolution's weights are [outputs, inputs, k, k], not ", weight.sizes());
    at::NoGradGuard no_gradient;
    // The gradient of a convolution that keeps the size is the convolution with the weights turned by 180 degrees
    // and inputs and outputs exchanged.
    const auto ordered = (backward ? weight.flip({2, 3}).transpose(0, 1) : weight).contiguous();
    const int64_t padding[2] = {weight.size(2) / 2, weight.size(3) / 2};
    return at::mkldnn_reorder_conv2d_weight(ordered.to_mkldnn(), padding, ONE, ONE, 1,
                                            at::OptionalIntArrayRef(input_size));
}

at::Tensor packed_convolution(const at::Tensor &input, const at::Tensor &forward_weight,
                              const at::Tensor &backward_weight, const at::Tensor &bias) {
    check_packed(input, forward_weight, backward_weight, bias);
    return PackedConvolution::apply(input, forward_weight, backward_weight, bias);
}

namespace {

at::Tensor packed_convolution_add(const at::Tensor &input, const at::Tensor &forward_weight,
                                  const at::Tensor &backward_weight, const at::Tensor &bias,
                                  const at::Tensor &residual) {
    check_packed(input, forward_weight, backward_weight, bias);
    const std::vector<int64_t> result{input.size(0), forward_weight.size(0), input.size(2), input.size(3)};
    TORCH_CHECK(residual.sizes() == at::IntArrayRef(result), "a packed convolution with the result ",
                at::IntArrayRef(result), " cannot add ", residual.sizes());
    return PackedConvolutionAdd::apply(input, residual, forward_weight, backward_weight, bias);
}

} // namespace

} // namespace ringtune

extern "C" at::Tensor *ringtune_packed_convolution_add(const at::Tensor *input, const at::Tensor *forward_weight,
                                                       const at::Tensor *backward_weight, const at::Tensor *bias,
                                                       const at::Tensor *residual) {
    return ringtune::guarded<at::Tensor *>(nullptr, [&] {
        return new at::Tensor(
            ringtune::packed_convolution_add(*input, *forward_weight, *backward_weight, *bias, *residual));
    });
}
