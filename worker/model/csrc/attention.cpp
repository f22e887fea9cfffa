// Attention as libtorch sees it: an autograd function around attention_kernels.h, for bf16, and float_layers.h, for fp32,
// and the choice of what runs it.

#include "backends.h"
#include "float_layers.h"
#include "shim.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <cstring>

namespace ringtune {

namespace {

using flash::Backend;
using flash::Bf16;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

Backend backend_of(AttentionKernel kernel) {
    if (kernel == AttentionKernel::Amx) {
        return flash::amx_backend();
    }
    return flash::vector_backend();
}

template <typename Element> flash::View<Element> view(const at::Tensor &tensor) {
    auto *data = tensor.defined() ? static_cast<Element *>(tensor.data_ptr()) : nullptr;
    if (data == nullptr) {
        return {nullptr, 0, 0, 0};
    }
    return {data, tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

flash::Shape shape_of(const at::Tensor &query, const at::Tensor &key) {
    const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(query.size(3))));
    return {query.size(0), query.size(2), query.size(1), key.size(1), query.size(3), scale};
}

at::Tensor with_contiguous_width(const at::Tensor &tensor) {
    return tensor.stride(3) == 1 ? tensor : tensor.contiguous();
}

// One kernel's attention and its gradients; what is not wanted of those is undefined.
struct Attended {
    at::Tensor output, log_sum_exp;
};

Attended attend(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value, AttentionKernel kernel) {
    Attended result{at::empty(query.sizes(), query.options().memory_format(at::MemoryFormat::Contiguous)),
                    at::empty({query.size(0), query.size(2), query.size(1)}, query.options().dtype(at::kFloat))};
    if (query.scalar_type() == at::kFloat) {
        const auto backend = flash::vector_backend();
        floats::attend(shape_of(query, key), {backend, at::get_num_threads()}, view<const float>(query),
                       view<const float>(key), view<const float>(value), view<float>(result.output),
                       result.log_sum_exp.data_ptr<float>());
        return result;
    }
    flash::forward(shape_of(query, key), backend_of(kernel), view<const Bf16>(query), view<const Bf16>(key),
                   view<const Bf16>(value), view<Bf16>(result.output), result.log_sum_exp.data_ptr<float>());
    return result;
}

// Where gradients go; undefined where not wanted.
struct Slopes {
    at::Tensor query, key, value;
};

void attend_back(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value, const Attended &attended,
                 const at::Tensor &gradient, AttentionKernel kernel, const Slopes &slopes) {
    const float *log_sum_exp = attended.log_sum_exp.const_data_ptr<float>();
    if (query.scalar_type() == at::kFloat) {
        const auto backend = flash::vector_backend();
        floats::attend_back(shape_of(query, key), {backend, at::get_num_threads()},
                            {view<const float>(query), view<const float>(key), view<const float>(value),
                             view<const float>(attended.output), log_sum_exp, view<const float>(gradient)},
                            {view<float>(slopes.query), view<float>(slopes.key), view<float>(slopes.value)});
        return;
    }
    flash::backward(shape_of(query, key), backend_of(kernel), view<const Bf16>(query), view<const Bf16>(key),
                    view<const Bf16>(value), view<const Bf16>(attended.output), log_sum_exp, view<const Bf16>(gradient),
                    {view<Bf16>(slopes.query), view<Bf16>(slopes.key), view<Bf16>(slopes.value)});
}

struct TiledAttention : torch::autograd::Function<TiledAttention> {
    static Variable forward(AutogradContext *context, const Variable &query_in, const Variable &key_in,
                            const Variable &value_in, int64_t kernel) {
        const auto query = with_contiguous_width(query_in);
        const auto key = with_contiguous_width(key_in);
        const auto value = with_contiguous_width(value_in);
        RINGTUNE_RECORD("attention", query, key, value);
        const auto attended = attend(query, key, value, static_cast<AttentionKernel>(kernel));
        context->save_for_backward({query, key, value, attended.output, attended.log_sum_exp});
        context->saved_data["kernel"] = kernel;
        return attended.output;
    }

    static variable_list backward(AutogradContext *context, const variable_list &gradients) {
        const auto saved = context->get_saved_variables();
        const auto grad_output = with_contiguous_width(gradients[0]);
        variable_list results(4);
        for (size_t input = 0; input < 3; ++input) {
            if (context->needs_input_grad(input)) {
                results[input] = at::empty(saved[input].sizes(),
                                           saved[input].options().memory_format(at::MemoryFormat::Contiguous));
            }
        }
        RINGTUNE_RECORD("attention_backward", saved[0], saved[1], saved[2], results[0], results[1], results[2]);
        const auto kernel = static_cast<AttentionKernel>(context->saved_data["kernel"].toInt());
        attend_back(saved[0], saved[1], saved[2], {saved[3], saved[4]}, grad_output, kernel,
                    {results[0], results[1], results[2]});
        return results;
    }
};

// The same where queries, keys and values come from one product: [batch, tokens, 3, heads, width]. Their gradients go
// into one tensor, which is what the product's way back takes.
struct TiledSelfAttention : torch::autograd::Function<TiledSelfAttention> {
    static Variable forward(AutogradContext *context, const Variable &together_in, int64_t kernel) {
        at::AutoDispatchBelowADInplaceOrView below_autograd;
        const auto together = together_in.contiguous();
        RINGTUNE_RECORD("attention", together.select(2, 0), together.select(2, 1), together.select(2, 2));
        const auto attended = attend(together.select(2, 0), together.select(2, 1), together.select(2, 2),
                                     static_cast<AttentionKernel>(kernel));
        context->save_for_backward({together, attended.output, attended.log_sum_exp});
        context->saved_data["kernel"] = kernel;
        return attended.output;
    }

    static variable_list backward(AutogradContext *context, const variable_list &gradients) {
        const auto saved = context->get_saved_variables();
        const auto grad_output = with_contiguous_width(gradients[0]);
        const auto part = [](const at::Tensor &together, int64_t index) { return together.select(2, index); };
        const at::Tensor result = at::empty_like(saved[0]);
        const auto query = part(saved[0], 0), key = part(saved[0], 1);
        RINGTUNE_RECORD("attention_backward", query, key, part(saved[0], 2), query, key, part(saved[0], 2));
        const auto kernel = static_cast<AttentionKernel>(context->saved_data["kernel"].toInt());
        attend_back(query, key, part(saved[0], 2), {saved[1], saved[2]}, grad_output, kernel,
                    {part(result, 0), part(result, 1), part(result, 2)});
        return {result, Variable()};
    }
};

// Whether such a kernel of ours takes these.
bool fits_tiled(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value, AttentionKernel kernel) {
    const auto type = query.scalar_type();
    const bool has_kernels = type == at::kFloat ? floats::used(floats::Family::Attention)
                                                : type == at::kBFloat16 && kernel != AttentionKernel::Floats;
    const auto fits = [&](const at::Tensor &tensor) {
        return tensor.device().is_cpu() && tensor.scalar_type() == type && tensor.numel() > 0;
    };
    return kernel != AttentionKernel::Libtorch && has_kernels && fits(query) && fits(key) && fits(value);
}

} // namespace

AttentionKernel attention_kernel() {
    if (!flash::supported()) {
        return floats::used(floats::Family::Attention) ? AttentionKernel::Floats : AttentionKernel::Libtorch;
    }
    return flash::amx_supported() ? AttentionKernel::Amx : AttentionKernel::Avx512;
}

at::Tensor attention(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
                     AttentionKernel kernel) {
    TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && key.sizes() == value.sizes() &&
                    query.size(0) == key.size(0) && query.size(2) == key.size(2) && query.size(3) == key.size(3),
                "attention takes query [batch, queries, heads, width] and key and value [batch, keys, heads, width], "
                "not ",
                query.sizes(), ", ", key.sizes(), " and ", value.sizes());
    if (fits_tiled(query, key, value, kernel)) {
        return TiledAttention::apply(query, key, value, static_cast<int64_t>(kernel));
    }
    return at::scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
        .transpose(1, 2);
}

at::Tensor self_attention(const at::Tensor &together, AttentionKernel kernel) {
    TORCH_CHECK(together.dim() == 5 && together.size(2) == 3,
                "self-attention takes queries, keys and values together, [batch, tokens, 3, heads, width], not ",
                together.sizes());
    if (fits_tiled(together, together, together, kernel)) {
        return TiledSelfAttention::apply(together, static_cast<int64_t>(kernel));
    }
    const auto parts = together.unbind(2);
    return attention(parts[0], parts[1], parts[2], kernel);
}

} // namespace ringtune
