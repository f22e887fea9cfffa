// Layer normalisation and GEGLU as libtorch sees them: autograd functions around fused_kernels.h. Weights that are trained have
// handles (weight_gradient.cpp).
#include "fused_tensors.h"

#include <torch/csrc/autograd/custom_function.h>

namespace ringtune {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Gives the input back beside the result: whoever goes on with that one has its gradient added in the same sweep.
struct LayerNormFunction : torch::autograd::Function<LayerNormFunction> {
    static variable_list forward(AutogradContext *context, const Tensor &x_in, const Tensor &weight_in,
                                 const Tensor &bias_in, double epsilon, const std::optional<Tensor> &weight_end,
                                 const std::optional<Tensor> &bias_end) {
        at::AutoDispatchBelowADInplaceOrView below;
        context->set_materialize_grads(false);
        const Tensor x = x_in.contiguous();
        RINGTUNE_RECORD("layer_norm", x);
        const Tensor weight = weight_in.to(at::kFloat).contiguous(), bias = bias_in.to(at::kFloat).contiguous();
        const int64_t width = x.size(-1), rows = x.numel() / width;
        Tensor y = at::empty(x.sizes(), x.options());
        const Tensor statistics = at::empty({rows, 2}, weight.options());
        const fused::Affine affine{weight.const_data_ptr<float>(), bias.const_data_ptr<float>()};
        by_kind(x, [&]<typename Element>(Element) {
            at::parallel_for(0, rows, STRETCH, [&](int64_t begin, int64_t end) {
                fused::layer_norm(end - begin, width, affine, static_cast<float>(epsilon), elements<Element>(x) + begin * width,
                                  mutable_elements<Element>(y) + begin * width, statistics.data_ptr<float>() + begin * 2);
            });
        });
        context->save_for_backward({x, weight, statistics});
        context->saved_data["trains_weight"] = weight_end.has_value();
        context->saved_data["trains_bias"] = bias_end.has_value();
        return {y, at::alias(x_in)};
    }

    static variable_list backward(AutogradContext *context, const variable_list &gradients) {
        variable_list results(6);
        if (!gradients[0].defined()) {
            results[0] = gradients[1];
            return results;
        }
        const auto saved = context->get_saved_variables();
        const Tensor &x = saved[0], &weight = saved[1], &statistics = saved[2];
        const Tensor gradient = gradients[0].contiguous();
        const Tensor kept = gradients[1].defined() ? gradients[1].contiguous() : Tensor();
        RINGTUNE_RECORD("layer_norm_backward", x, gradient, kept);
        Tensor result = at::empty(x.sizes(), x.options());
        const int64_t width = x.size(-1), rows = x.numel() / width;
        by_kind(x, [&]<typename Element>(Element) {
            at::parallel_for(0, rows, STRETCH, [&](int64_t begin, int64_t end) {
                const int64_t first = begin * width;
                fused::layer_norm_backward(end - begin, width, weight.const_data_ptr<float>(), elements<Element>(x) + first,
                                           statistics.const_data_ptr<float>() + begin * 2, elements<Element>(gradient) + first,
                                           kept.defined() ? elements<Element>(kept) + first : nullptr,
                                           mutable_elements<Element>(result) + first);
            });
        });
        results[0] = result;
        const Tensor each = gradient.reshape({rows, width});
        if (context->saved_data["trains_weight"].toBool()) {
            const Tensor mean = statistics.narrow(1, 0, 1), inverse = statistics.narrow(1, 1, 1);
            results[4] = ((x.reshape({rows, width}).to(at::kFloat) - mean) * inverse * each).sum(0);
        }
        if (context->saved_data["trains_bias"].toBool()) {
            results[5] = at::sum(each, 0, false, at::kFloat);
        }
        return results;
    }
};

struct GegluFunction : torch::autograd::Function<GegluFunction> {
    static Tensor forward(AutogradContext *context, const Tensor &x_in) {
        at::AutoDispatchBelowADInplaceOrView below;
        const Tensor x = x_in.contiguous();
        RINGTUNE_RECORD("geglu", x);
        auto shape = x.sizes().vec();
        shape.back() /= 2;
        Tensor y = at::empty(shape, x.options());
        const int64_t width = shape.back();
        by_kind(x, [&]<typename Element>(Element) {
            at::parallel_for(0, y.numel() / width, STRETCH, [&](int64_t begin, int64_t end) {
                fused::geglu(end - begin, width, elements<Element>(x) + begin * 2 * width,
                             mutable_elements<Element>(y) + begin * width);
            });
        });
        context->save_for_backward({x});
        return y;
    }

    static variable_list backward(AutogradContext *context, variable_list gradients) {
        const Tensor x = context->get_saved_variables()[0];
        const Tensor gradient = gradients[0].contiguous();
        RINGTUNE_RECORD("geglu_backward", x, gradient);
        Tensor result = at::empty(x.sizes(), x.options());
        const int64_t width = x.size(-1) / 2;
        by_kind(x, [&]<typename Element>(Element) {
            at::parallel_for(0, gradient.numel() / width, STRETCH, [&](int64_t begin, int64_t end) {
                fused::geglu_backward(end - begin, width, elements<Element>(x) + begin * 2 * width,
                                      elements<Element>(gradient) + begin * width,
                                      mutable_elements<Element>(result) + begin * 2 * width);
            });
        });
        return {result};
    }
};

// The result, and `x` for whoever goes on with it.
variable_list layer_norm(const Tensor &x, const Tensor &weight, const Tensor &bias, const Ends &ends, double epsilon) {
    check_frozen("layer norm", "weight", weight);
    check_frozen("layer norm", "bias", bias);
    TORCH_CHECK(x.dim() >= 1, "layer norm takes [.., width], not ", x.sizes());
    const int64_t width = x.size(-1);
    for (const Tensor &each : {weight, bias}) {
        TORCH_CHECK(each.dim() == 1 && each.size(0) == width, "layer norm of ", width,
                    " values takes as many weights and biases, not ", each.sizes());
    }
    if (is_fused(x)) {
        return LayerNormFunction::apply(x, weight, bias, epsilon, ends.weight, ends.bias);
    }
    return {at::layer_norm(x, {width}, with_end(weight, ends.weight), with_end(bias, ends.bias), epsilon), x};
}

at::Tensor geglu(const Tensor &x) {
    TORCH_CHECK(x.dim() >= 1 && x.size(-1) % 2 == 0, "GEGLU halves its last dimension, which ", x.sizes(),
                " does not allow");
    if (is_fused(x)) {
        return GegluFunction::apply(x);
    }
    const auto halves = x.chunk(2, -1);
    return halves[0] * at::gelu(halves[1]);
}

} // namespace

} // namespace ringtune

extern "C" {

bool ringtune_layer_norm(const at::Tensor *x, const at::Tensor *weight, const at::Tensor *bias,
                         const at::Tensor *weight_end, const at::Tensor *bias_end, double epsilon, at::Tensor **results) {
    return ringtune::guarded(false, [&] {
        const ringtune::Ends ends{ringtune::present(weight_end), ringtune::present(bias_end)};
        return ringtune::hand_over(ringtune::layer_norm(*x, *weight, *bias, ends, epsilon), results);
    });
}

at::Tensor *ringtune_geglu(const at::Tensor *x) {
    return ringtune::guarded<at::Tensor *>(nullptr, [&] { return new at::Tensor(ringtune::geglu(*x)); });
}

} // extern "C"
