// A convolution with frozen weights, packed for what convolves: kernels of our own (frozen_layers.h), or oneDNN. libtorch's
// convolution puts the weights into oneDNN's order at every call, forward and backward; where weights are large and
// pictures small this takes longer than the convolution.

#include "blocks.h"
#include "frozen_layers.h"
#include "shim.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

namespace ringtune {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using Scalars = c10::List<std::optional<at::Scalar>>;

constexpr int64_t ONE[2] = {1, 1};

// A square's two sides.
struct Sides {
    int64_t values[2];

    explicit Sides(int64_t side) : values{side, side} {}
    operator at::IntArrayRef() const { return values; }
};

// oneDNN 3.12 with AMX reads unset memory where steps of 2 leave a single column of results. With zeros to the right there are
// two, of which the first is the one that is wanted.
bool is_misread(const at::Tensor &input, const at::Tensor &packed, int64_t stride, int64_t padding) {
    return stride == 2 && packed.size(3) > 1 && (input.size(3) + 2 * padding - packed.size(3)) / stride == 0;
}

// oneDNN's convolution of a dense input with packed weights; channels-last in and out.
at::Tensor convolve(const at::Tensor &input, const at::Tensor &packed, const std::optional<at::Tensor> &bias,
                    int64_t stride, int64_t padding) {
    using Signature = at::Tensor(const at::Tensor &, const at::Tensor &, const std::optional<at::Tensor> &,
                                 at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, int64_t, std::string_view, Scalars,
                                 std::optional<std::string_view>);
    static const auto operation = c10::Dispatcher::singleton()
                                      .findSchemaOrThrow("mkldnn::_convolution_pointwise", "")
                                      .typed<Signature>();
    if (frozen::layer_of(packed)) {
        return frozen::convolve(input, packed, bias, std::nullopt);
    }
    if (is_misread(input, packed, stride, padding)) {
        const at::Tensor wider = at::constant_pad_nd(input, {0, stride}).contiguous(at::MemoryFormat::ChannelsLast);
        return convolve(wider, packed, bias, stride, padding)
            .narrow(3, 0, 1)
            .contiguous(at::MemoryFormat::ChannelsLast);
    }
    RECORD_FUNCTION(stride == 1 ? "ringtune::convolution" : "ringtune::convolution_strided",
                    std::vector<c10::IValue>({input, packed}));
    return operation.call(input, packed, bias, Sides(padding), Sides(stride), ONE, 1, "none", Scalars(), "");
}

// The same plus `residual`, which has the output's shape; rounded once.
at::Tensor convolve_and_add(const at::Tensor &input, const at::Tensor &residual, const at::Tensor &packed,
                            const at::Tensor &bias, int64_t stride, int64_t padding) {
    using Signature = at::Tensor(const at::Tensor &, const at::Tensor &, const at::Tensor &,
                                 const std::optional<at::Tensor> &, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef,
                                 int64_t, std::string_view, std::optional<at::Scalar>, std::optional<std::string_view>,
                                 Scalars, std::optional<std::string_view>);
    static const auto operation = c10::Dispatcher::singleton()
                                      .findSchemaOrThrow("mkldnn::_convolution_pointwise", "binary")
                                      .typed<Signature>();
    if (frozen::layer_of(packed)) {
        return frozen::convolve(input, packed, bias, residual);
    }
    if (is_misread(input, packed, stride, padding)) {
        return convolve(input, packed, bias, stride, padding) + residual;
    }
    RINGTUNE_RECORD("convolution_add", input, residual, packed);
    return operation.call(input, residual.contiguous(at::MemoryFormat::ChannelsLast), packed, bias, Sides(padding),
                          Sides(stride), ONE, 1, "add", at::Scalar(1.0), std::nullopt, Scalars(), std::nullopt);
}

// oneDNN's transposed convolution; `more` rows and columns than those that the input's own reach.
at::Tensor spread(const at::Tensor &input, const at::Tensor &packed, const std::optional<at::Tensor> &bias,
                  int64_t stride, int64_t padding, at::IntArrayRef more) {
    using Signature = at::Tensor(const at::Tensor &, const at::Tensor &, const std::optional<at::Tensor> &,
                                 at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, int64_t,
                                 std::string_view, Scalars, std::optional<std::string_view>);
    static const auto operation = c10::Dispatcher::singleton()
                                      .findSchemaOrThrow("mkldnn::_convolution_transpose_pointwise", "")
                                      .typed<Signature>();
    RINGTUNE_RECORD("convolution_transposed", input, packed);
    return operation.call(input.contiguous(at::MemoryFormat::ChannelsLast), packed, bias, Sides(padding), more,
                          Sides(stride), ONE, 1, "none", Scalars(), "");
}

at::Tensor run(const at::Tensor &input, const std::optional<at::Tensor> &residual, const at::Tensor &packed,
               const at::Tensor &bias, ConvolutionGeometry geometry) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (geometry.transposed) {
        return spread(input, packed, bias, geometry.stride, geometry.padding, Sides(0));
    }
    return residual ? convolve_and_add(input, *residual, packed, bias, geometry.stride, geometry.padding)
                    : convolve(input, packed, bias, geometry.stride, geometry.padding);
}

// The gradient of an input of height x width, given that of the output. With steps it is the transposed operation with
// the same weights; without, the convolution with the weights turned by 180 degrees.
at::Tensor run_backward(const at::Tensor &gradient, const at::Tensor &packed, ConvolutionGeometry geometry,
                        int64_t height, int64_t width) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const int64_t stride = geometry.stride, padding = geometry.padding, kernel = packed.size(2);
    if (stride == 1 || geometry.transposed) {
        return convolve(gradient, packed, std::nullopt, stride, padding);
    }
    const auto missing = [&](int64_t side, int64_t outputs) {
        return side - ((outputs - 1) * stride - 2 * padding + kernel);
    };
    const int64_t more[2] = {missing(height, gradient.size(2)), missing(width, gradient.size(3))};
    return spread(gradient, packed, std::nullopt, stride, padding, more);
}

struct PackedConvolution : torch::autograd::Function<PackedConvolution> {
    static Variable forward(AutogradContext *context, const Variable &input, const std::optional<at::Tensor> &residual,
                            const Variable &forward_weight, const std::optional<at::Tensor> &backward_weight,
                            const Variable &bias, ConvolutionGeometry geometry) {
        if (backward_weight) {
            context->saved_data["weight"] = *backward_weight;
        }
        context->saved_data["geometry"] = std::vector<int64_t>{
            geometry.stride, geometry.padding, geometry.transposed, input.size(2), input.size(3), residual.has_value()};
        return run(input, residual, forward_weight, bias, geometry);
    }

    static variable_list backward(AutogradContext *context, const variable_list &gradients) {
        const auto saved = context->saved_data["geometry"].toIntVector();
        const ConvolutionGeometry geometry{saved[0], saved[1], saved[2] != 0};
        variable_list results(6);
        if (context->needs_input_grad(0)) {
            const auto weight = context->saved_data["weight"].toTensor();
            results[0] = run_backward(gradients[0], weight, geometry, saved[3], saved[4]);
        }
        if (saved[5] != 0 && context->needs_input_grad(1)) {
            results[1] = gradients[0];
        }
        return results;
    }
};

// How many places a kernel has along a side.
int64_t places(int64_t side, int64_t kernel, ConvolutionGeometry geometry) {
    return geometry.transposed ? (side - 1) * geometry.stride - 2 * geometry.padding + kernel
                               : (side + 2 * geometry.padding - kernel) / geometry.stride + 1;
}

// [to, from, k, k] of packed weights, wherever they are multiplied.
std::vector<int64_t> sizes_of(const at::Tensor &packed) {
    if (const auto layer = frozen::layer_of(packed)) {
        return {layer->outputs, layer->inputs, layer->side, layer->side};
    }
    TORCH_CHECK(packed.is_mkldnn() && packed.dim() == 4, "a packed convolution takes packed weights");
    return packed.sizes().vec();
}

// What a convolution asks of its weights; sizes are [to, from, k, k] for those of the way forward, whatever they were
// before they were packed, and [from, to, k, k] for those of the way back.
void check_packed(const at::Tensor &input, const std::optional<at::Tensor> &residual, const at::Tensor &forward_weight,
                  const std::optional<at::Tensor> &backward_weight, const at::Tensor &bias,
                  ConvolutionGeometry geometry) {
    check_frozen("a packed convolution", "forward weights", forward_weight);
    check_frozen("a packed convolution", "backward weights", backward_weight.value_or(at::Tensor()));
    check_frozen("a packed convolution", "bias", bias);
    const auto forward_sizes = sizes_of(forward_weight);
    const int64_t outputs = forward_sizes[0], inputs = forward_sizes[1], kernel = forward_sizes[2];
    TORCH_CHECK(!frozen::layer_of(forward_weight) ||
                    (geometry.stride == 1 && !geometry.transposed && 2 * geometry.padding + 1 == kernel),
                "these packed weights are those of a convolution that keeps the size");
    TORCH_CHECK(bias.dim() == 1 && bias.size(0) == outputs, "a packed convolution to ", outputs,
                " channels takes a bias of ", outputs, ", not ", bias.sizes());
    TORCH_CHECK(!backward_weight || sizes_of(*backward_weight) == std::vector<int64_t>({inputs, outputs, kernel, kernel}),
                "a packed convolution from ", inputs, " to ", outputs, " channels takes backward weights of ", inputs,
                " and ", outputs, ", not ", at::IntArrayRef(sizes_of(backward_weight.value_or(forward_weight))));
    TORCH_CHECK(backward_weight || !at::GradMode::is_enabled() || !input.requires_grad(),
                "a packed convolution without backward weights has no gradient for its input");
    TORCH_CHECK(input.dim() == 4 && input.size(1) == inputs, "a packed convolution takes [batch, ", inputs,
                ", height, width], not ", input.sizes());
    const auto fits = [&](int64_t side) { return side >= 1 && side + 2 * geometry.padding >= kernel; };
    TORCH_CHECK(geometry.transposed || (fits(input.size(2)) && fits(input.size(3))), "a kernel of ", kernel,
                " with zeros of ", geometry.padding, " does not fit into ", input.sizes());
    if (residual) {
        const std::vector<int64_t> result{input.size(0), outputs, places(input.size(2), kernel, geometry),
                                          places(input.size(3), kernel, geometry)};
        TORCH_CHECK(!geometry.transposed, "a transposed convolution adds no residual");
        TORCH_CHECK(residual->sizes() == at::IntArrayRef(result), "a packed convolution with the result ",
                    at::IntArrayRef(result), " cannot add ", residual->sizes());
    }
}

at::Tensor reorder(const at::Tensor &weight, int64_t stride, int64_t padding, at::IntArrayRef input_size) {
    using Signature = at::Tensor(const at::Tensor &, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, int64_t,
                                 at::OptionalIntArrayRef);
    static const auto operation = c10::Dispatcher::singleton()
                                      .findSchemaOrThrow("mkldnn::_reorder_convolution_weight", "")
                                      .typed<Signature>();
    const blocks::Lasting lasting;
    return operation.call(weight, Sides(padding), Sides(stride), ONE, 1, at::OptionalIntArrayRef(input_size));
}

at::Tensor reorder_transposed(const at::Tensor &weight, int64_t stride, int64_t padding, at::IntArrayRef input_size) {
    using Signature = at::Tensor(const at::Tensor &, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef,
                                 int64_t, at::OptionalIntArrayRef);
    static const auto operation = c10::Dispatcher::singleton()
                                      .findSchemaOrThrow("mkldnn::_reorder_convolution_transpose_weight", "")
                                      .typed<Signature>();
    const int64_t more = std::max<int64_t>(0, stride - weight.size(2) + 2 * padding);
    const blocks::Lasting lasting;
    return operation.call(weight, Sides(padding), Sides(more), Sides(stride), ONE, 1,
                          at::OptionalIntArrayRef(input_size));
}

} // namespace

at::Tensor pack_convolution(const at::Tensor &weight, at::IntArrayRef input_size, ConvolutionGeometry geometry,
                            bool backward) {
    check_frozen("packing a convolution", "weights", weight);
    TORCH_CHECK(weight.dim() == 4 && !weight.is_mkldnn(), "a convolution's weights are [outputs, inputs, k, k], not ", weight.sizes());
    TORCH_CHECK(geometry.stride == 1 ? !geometry.transposed && 2 * geometry.padding + 1 == weight.size(2)
                                     : geometry.stride == 2,
                "a convolution is packed that keeps the size, or of stride 2, not of stride ", geometry.stride,
                " with zeros of ", geometry.padding, " and a kernel of ", weight.size(2));
    at::NoGradGuard no_gradient;
    if (geometry.stride > 1 && geometry.transposed != backward) {
        return reorder_transposed(weight.contiguous(), geometry.stride, geometry.padding, input_size);
    }
    // The gradient of a convolution that keeps the size is the convolution with the weights turned by 180 degrees
    // and inputs and outputs exchanged.
    const bool turned = backward && geometry.stride == 1;
    if (geometry.stride == 1 && frozen::takes(weight)) {
        return frozen::packed(weights_in_order(weight, turned));
    }
    return reorder(weights_in_order(weight, turned), geometry.stride, geometry.padding, input_size);
}

at::Tensor packed_convolution(const at::Tensor &input, const at::Tensor &forward_weight,
                              const std::optional<at::Tensor> &backward_weight, const at::Tensor &bias,
                              const std::optional<at::Tensor> &residual, ConvolutionGeometry geometry) {
    check_packed(input, residual, forward_weight, backward_weight, bias, geometry);
    return PackedConvolution::apply(input, residual, forward_weight, backward_weight, bias, geometry);
}

} // namespace ringtune

extern "C" {

at::Tensor *ringtune_pack_convolution(const at::Tensor *weight, const int64_t *input_size, size_t dimensions,
                                      int64_t stride, int64_t padding, bool transposed, bool backward) {
    return ringtune::guarded<at::Tensor *>(nullptr, [&] {
        return new at::Tensor(ringtune::pack_convolution(*weight, at::IntArrayRef(input_size, dimensions),
                                                         {stride, padding, transposed}, backward));
    });
}

at::Tensor *ringtune_packed_convolution(const at::Tensor *input, const at::Tensor *forward_weight,
                                        const at::Tensor *backward_weight, const at::Tensor *bias,
                                        const at::Tensor *residual, int64_t stride, int64_t padding, bool transposed) {
    return ringtune::guarded<at::Tensor *>(nullptr, [&] {
        return new at::Tensor(ringtune::packed_convolution(*input, *forward_weight, ringtune::present(backward_weight), *bias,
                                                           ringtune::present(residual), {stride, padding, transposed}));
    });
}

} // extern "C"
