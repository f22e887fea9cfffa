// Gradients of the weights of layers that are trained. A layer computes as a frozen one does, with its weights' values; behind it
// stands a function that hands the result on as it is and makes the weights' gradients. They are those of handles: tensors of
// the weights' shapes without memory of their own, which the backward pass ends at.
#include "shim.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

namespace ringtune {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr size_t WEIGHTS = 3;

// Which of a layer's tensors are trained: of weights that lie one above the other, and of the bias.
struct Handles {
    std::optional<Tensor> weights[WEIGHTS];
    std::optional<Tensor> bias;
};

// [outputs, inputs] of rows x [.., inputs] and gradients [.., outputs].
Tensor of_matrix(const Tensor &x, const Tensor &gradient) {
    const Tensor rows = gradient.reshape({-1, gradient.size(-1)});
    return at::mm(rows.t(), x.reshape({-1, x.size(-1)}));
}

// [outputs, inputs, side, side].
Tensor of_convolution(const Tensor &x, const Tensor &gradient, int64_t side, int64_t stride, int64_t padding) {
    const int64_t steps[2] = {stride, stride}, zeros[2] = {padding, padding}, one[2] = {1, 1}, none[2] = {0, 0};
    // Its shape is asked for, and nothing else.
    const Tensor weight = at::empty({gradient.size(1), x.size(1), side, side}, x.options());
    return std::get<1>(at::convolution_backward(gradient, x, weight, std::nullopt, steps, zeros, one, false, none, 1,
                                                {false, true, false}));
}

// `side`: of a convolution's kernel; 0: the layer is linear. `rows`: outputs of each of the weights that lie one above the other.
struct WeightGradient : torch::autograd::Function<WeightGradient> {
    static Variable forward(AutogradContext *context, const Variable &result, const Variable &x,
                            const std::optional<Tensor> &first, const std::optional<Tensor> &second,
                            const std::optional<Tensor> &third, const std::optional<Tensor> &bias, int64_t parts,
                            int64_t side, int64_t stride, int64_t padding) {
        at::AutoDispatchBelowADInplaceOrView below;
        context->save_for_backward({x});
        const auto dimensions = [](const std::optional<Tensor> &handle) { return handle ? handle->dim() : 0; };
        context->saved_data["trained"] = std::vector<int64_t>{dimensions(first), dimensions(second), dimensions(third),
                                                              dimensions(bias), parts, side, stride, padding};
        // Not the result itself: see group_norm.cpp.
        return at::alias(result);
    }

    static variable_list backward(AutogradContext *context, const variable_list &gradients) {
        const auto about = context->saved_data["trained"].toIntVector();
        const int64_t parts = about[4], side = about[5];
        const Tensor x = context->get_saved_variables()[0], &gradient = gradients[0];
        variable_list results(10);
        results[0] = gradient;
        RINGTUNE_RECORD("weight_gradient", x, gradient);
        if (about[0] + about[1] + about[2] > 0) {
            const Tensor whole =
                side == 0 ? of_matrix(x, gradient) : of_convolution(x, gradient, side, about[6], about[7]);
            const int64_t rows = whole.size(0) / parts;
            for (size_t part = 0; part < WEIGHTS; ++part) {
                if (about[part]) {
                    const Tensor own = whole.narrow(0, static_cast<int64_t>(part) * rows, rows);
                    // A linear layer's weights may be stored as those of a 1x1 convolution.
                    results[2 + part] = about[part] > own.dim() ? own.unsqueeze(-1).unsqueeze(-1) : own;
                }
            }
        }
        if (about[3]) {
            results[5] = side == 0 ? at::sum(gradient.reshape({-1, gradient.size(-1)}), 0, false, at::kFloat)
                                   : at::sum(gradient, {0, 2, 3}, false, at::kFloat);
        }
        return results;
    }
};

Tensor with_weight_gradient(const Tensor &result, const Tensor &x, const Handles &handles, int64_t parts, int64_t side,
                            int64_t stride, int64_t padding) {
    TORCH_CHECK(parts >= 1 && parts <= static_cast<int64_t>(WEIGHTS), "weights that lie one above the other are 1 to 3, not ",
                parts);
    const int64_t outputs = side == 0 ? result.size(-1) : result.size(1), inputs = side == 0 ? x.size(-1) : x.size(1);
    for (size_t part = 0; part < WEIGHTS; ++part) {
        const auto &handle = handles.weights[part];
        TORCH_CHECK(!handle || (static_cast<int64_t>(part) < parts && handle->numel() ==
                                    outputs / parts * inputs * std::max<int64_t>(side * side, 1)),
                    "a layer from ", x.sizes(), " to ", result.sizes(), " has no weights of ",
                    handle ? handle->sizes() : at::IntArrayRef());
    }
    TORCH_CHECK(!handles.bias || handles.bias->numel() == outputs, "a layer to ", result.sizes(), " has no bias of ",
                handles.bias ? handles.bias->sizes() : at::IntArrayRef());
    return WeightGradient::apply(result, x, handles.weights[0], handles.weights[1], handles.weights[2], handles.bias, parts,
                                 side, stride, padding);
}

} // namespace

} // namespace ringtune

extern "C" {

at::Tensor *ringtune_with_weight_gradient(const at::Tensor *result, const at::Tensor *input, const at::Tensor *first,
                                          const at::Tensor *second, const at::Tensor *third, const at::Tensor *bias,
                                          int64_t parts, int64_t side, int64_t stride, int64_t padding) {
    return ringtune::guarded<at::Tensor *>(nullptr, [&] {
        using ringtune::present;
        return new at::Tensor(ringtune::with_weight_gradient(
            *result, *input, {{present(first), present(second), present(third)}, present(bias)}, parts, side, stride,
            padding));
    });
}

bool ringtune_gradients(const at::Tensor *output, const at::Tensor *gradient, at::Tensor **ends, size_t count,
                        at::Tensor **results) {
    return ringtune::guarded(false, [&] {
        std::vector<at::Tensor> inputs;
        for (size_t end = 0; end < count; ++end) {
            inputs.push_back(*ends[end]);
        }
        return ringtune::hand_over(torch::autograd::grad({*output}, inputs, {*gradient}, false, false, true), results);
    });
}

} // extern "C"
