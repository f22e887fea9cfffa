// A convolution with frozen weights that nobody packed: in fp32 by kernels of our own (float_layers.h) where they run and the
// layer is one of theirs, else libtorch's.
#include "backends.h"
#include "float_layers.h"
#include "shim.h"

#include <torch/csrc/autograd/custom_function.h>

namespace ringtune {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr auto LAST = at::MemoryFormat::ChannelsLast;

// Rows of pixels where a kernel has one place, else pictures. `channels`: of the operation, which is the layer's or its way back.
void run_floats(floats::Way way, const floats::Channels &channels, const at::Tensor &x, int64_t side,
                const floats::Operands &operands) {
    const auto backend = flash::vector_backend();
    const floats::Runner runner{backend, at::get_num_threads()};
    if (side == 1) {
        floats::multiply(runner, channels, way, x.size(0) * x.size(2) * x.size(3), operands);
    } else {
        floats::convolve(runner, channels, way, {x.size(0), x.size(2), x.size(3)}, operands);
    }
}

struct FloatConvolution : torch::autograd::Function<FloatConvolution> {
    static Variable forward(AutogradContext *context, const Variable &input, const std::optional<at::Tensor> &residual,
                            const Variable &weight, const std::optional<at::Tensor> &bias) {
        at::AutoDispatchBelowADInplaceOrView below_autograd;
        context->saved_data["weight"] = weight;
        context->saved_data["residual"] = residual.has_value();
        RINGTUNE_RECORD("convolution", input, weight);
        const at::Tensor x = input.contiguous(LAST), offset = bias ? bias->contiguous() : at::Tensor();
        const at::Tensor added = residual ? residual->contiguous(LAST) : at::Tensor();
        const at::Tensor result =
            at::empty({x.size(0), weight.size(0), x.size(2), x.size(3)}, x.options().memory_format(LAST));
        run_floats(floats::Way::Forward, {weight.size(1), weight.size(0)}, x, weight.size(2),
                   {x.const_data_ptr<float>(), weight.const_data_ptr<float>(),
                    bias ? offset.const_data_ptr<float>() : nullptr, residual ? added.const_data_ptr<float>() : nullptr,
                    result.mutable_data_ptr<float>()});
        return result;
    }

    static variable_list backward(AutogradContext *context, const variable_list &gradients) {
        const at::Tensor weight = context->saved_data["weight"].toTensor();
        variable_list results(4);
        if (context->needs_input_grad(0)) {
            RINGTUNE_RECORD("convolution", gradients[0], weight.transpose(0, 1));
            const at::Tensor x = gradients[0].contiguous(LAST);
            results[0] = at::empty({x.size(0), weight.size(1), x.size(2), x.size(3)}, x.options().memory_format(LAST));
            run_floats(floats::Way::Backward, {weight.size(0), weight.size(1)}, x, weight.size(2),
                       {x.const_data_ptr<float>(), weight.const_data_ptr<float>(), nullptr, nullptr,
                        results[0].mutable_data_ptr<float>()});
        }
        if (context->saved_data["residual"].toBool() && context->needs_input_grad(1)) {
            results[1] = gradients[0];
        }
        return results;
    }
};

// Whether kernels of our own convolve with fp32 weights of a layer with kernels of `side`; it keeps the size.
bool has_kernels(const floats::Channels &layer, int64_t side, int64_t stride, int64_t padding) {
    const auto family = side == 1 ? floats::Family::Products : floats::Family::Convolutions;
    return floats::used(family) && floats::fits(layer.inputs, layer.outputs) && stride == 1 && (side == 1 || side == 3) &&
           padding == side / 2;
}

// The same of these weights, which lie as they come from a file.
bool convolves_floats(const at::Tensor &input, const at::Tensor &weight, int64_t stride, int64_t padding) {
    const int64_t side = weight.size(2);
    return weight.scalar_type() == at::kFloat && weight.is_contiguous() && weight.size(3) == side &&
           has_kernels({weight.size(1), weight.size(0)}, side, stride, padding) && input.numel() > 0;
}

at::Tensor convolution(const at::Tensor &input, const at::Tensor &weight, const std::optional<at::Tensor> &bias,
                       const std::optional<at::Tensor> &residual, int64_t stride, int64_t padding) {
    check_frozen("a convolution", "weights", weight);
    check_frozen("a convolution", "bias", bias.value_or(at::Tensor()));
    TORCH_CHECK(weight.dim() == 4 && input.dim() == 4 && input.size(1) == weight.size(1) &&
                    input.scalar_type() == weight.scalar_type(),
                "a convolution with ", weight.scalar_type(), " weights ", weight.sizes(), " cannot take ",
                input.scalar_type(), " ", input.sizes());
    TORCH_CHECK(!bias || (bias->dim() == 1 && bias->size(0) == weight.size(0) && bias->scalar_type() == weight.scalar_type()),
                "a convolution with weights ", weight.sizes(), " cannot have a bias of ", bias->scalar_type(), " ",
                bias->sizes());
    TORCH_CHECK(stride >= 1 && padding >= 0, "a convolution of stride ", stride, " with zeros of ", padding);
    const auto places = [&](int64_t dimension) {
        return (input.size(dimension) + 2 * padding - weight.size(dimension)) / stride + 1;
    };
    const std::vector<int64_t> sizes{input.size(0), weight.size(0), places(2), places(3)};
    TORCH_CHECK(!residual || (residual->sizes() == at::IntArrayRef(sizes) && residual->scalar_type() == input.scalar_type()),
                "a convolution with the result ", at::IntArrayRef(sizes), " cannot add ", residual->scalar_type(), " ",
                residual->sizes());
    if (convolves_floats(input, weight, stride, padding)) {
        return FloatConvolution::apply(input, residual, weight, bias);
    }
    const int64_t strides[2] = {stride, stride}, paddings[2] = {padding, padding};
    const at::Tensor result = at::conv2d(input, weight, bias, strides, paddings);
    return residual ? result + *residual : result;
}

} // namespace

} // namespace ringtune

extern "C" {

at::Tensor *ringtune_convolution(const at::Tensor *input, const at::Tensor *weight, const at::Tensor *bias,
                                 const at::Tensor *residual, int64_t stride, int64_t padding) {
    return ringtune::guarded<at::Tensor *>(nullptr, [&] {
        return new at::Tensor(ringtune::convolution(*input, *weight, ringtune::present(bias), ringtune::present(residual), stride, padding));
    });
}

bool ringtune_convolution_has_kernels(int64_t inputs, int64_t outputs, int64_t side, int64_t stride, int64_t padding) {
    return ringtune::has_kernels({inputs, outputs}, side, stride, padding);
}

} // extern "C"
