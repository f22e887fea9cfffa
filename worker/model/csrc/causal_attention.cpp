// Causal attention with its gradient, each as a call of its own: a language model's way back is written out. Behind
// attention.cpp, whose views it uses, and dropped_attention.cpp.
#include "language_shim.h"

#include "backends.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

namespace ringtune {

namespace {

using at::Tensor;

void check_together(const Tensor &together) {
    TORCH_CHECK(together.dim() == 5 && together.size(2) == 3 && together.is_contiguous() && together.numel() > 0,
                "causal attention takes queries, keys and values together, [batch, tokens, 3, heads, width], not ",
                together.sizes());
}

// [batch, heads, tokens, width]
Tensor part(const Tensor &together, int64_t index) { return together.select(2, index).transpose(1, 2); }

// [batch, tokens, heads, width]
Tensor tokens_of(const Tensor &together, int64_t index) { return together.select(2, index); }

bool fits_causal(const Tensor &together, AttentionKernel kernel) {
    return together.scalar_type() == at::kBFloat16 && fits_tiled(together, together, together, kernel);
}

flash::Shape causal_shape_of(const Tensor &query, const ringtune_mask *mask) {
    flash::Shape shape = shape_of(query, query);
    shape.causal = true;
    shape.mask = mask;
    return shape;
}

std::vector<Tensor> causal_attention(const Tensor &together, const ringtune_mask *mask, AttentionKernel kernel) {
    check_together(together);
    training::check_mask("causal attention", mask, together.size(0));
    RINGTUNE_RECORD("causal_attention", together.select(2, 0), together.select(2, 1), together.select(2, 2));
    if (fits_causal(together, kernel)) {
        const Tensor query = tokens_of(together, 0);
        const Tensor output = at::empty(query.sizes(), query.options());
        const Tensor log_sum_exp =
            at::empty({query.size(0), query.size(2), query.size(1)}, query.options().dtype(at::kFloat));
        flash::forward(causal_shape_of(query, mask), backend_of(kernel), view<const flash::Bf16>(query),
                       view<const flash::Bf16>(tokens_of(together, 1)), view<const flash::Bf16>(tokens_of(together, 2)),
                       view<flash::Bf16>(output), log_sum_exp.data_ptr<float>());
        return {output, log_sum_exp};
    }
    if (mask != nullptr) {
        return dropped_attention(together, *mask);
    }
    const auto [output, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(
        part(together, 0), part(together, 1), part(together, 2), 0.0, true);
    return {output.transpose(1, 2).contiguous(), log_sum_exp};
}

Tensor causal_attention_backward(const Tensor &together, const Tensor &output, const Tensor &kept,
                                 const Tensor &gradient, const ringtune_mask *mask, AttentionKernel kernel) {
    check_together(together);
    training::check_mask("causal attention", mask, together.size(0));
    TORCH_CHECK(output.sizes() == together.select(2, 0).sizes() && gradient.sizes() == output.sizes(),
                "causal attention of ", together.sizes(), " has no output of ", output.sizes(), " with a gradient of ",
                gradient.sizes());
    RINGTUNE_RECORD("causal_attention_backward", together.select(2, 0), together.select(2, 1), together.select(2, 2));
    const Tensor result = at::empty(together.sizes(), together.options());
    if (fits_causal(together, kernel)) {
        TORCH_CHECK(output.is_contiguous() && gradient.is_contiguous() && gradient.scalar_type() == at::kBFloat16 &&
                        kept.numel() * together.size(4) == output.numel(),
                    "causal attention's output, its gradient and what was kept are not of one call");
        const Tensor query = tokens_of(together, 0);
        flash::backward(causal_shape_of(query, mask), backend_of(kernel), view<const flash::Bf16>(query),
                        view<const flash::Bf16>(tokens_of(together, 1)),
                        view<const flash::Bf16>(tokens_of(together, 2)), view<const flash::Bf16>(output),
                        kept.const_data_ptr<float>(), view<const flash::Bf16>(gradient),
                        {view<flash::Bf16>(tokens_of(result, 0)), view<flash::Bf16>(tokens_of(result, 1)),
                         view<flash::Bf16>(tokens_of(result, 2))});
        return result;
    }
    if (mask != nullptr) {
        return dropped_attention_backward(together, output, kept, gradient, *mask);
    }
    const auto [query, key, value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient.transpose(1, 2), part(together, 0), part(together, 1), part(together, 2), output.transpose(1, 2), kept,
        0.0, true);
    part(result, 0).copy_(query);
    part(result, 1).copy_(key);
    part(result, 2).copy_(value);
    return result;
}

} // namespace

} // namespace ringtune

extern "C" {

bool ringtune_causal_attention(const at::Tensor *together, const ringtune_mask *mask, int kernel,
                               at::Tensor **results) {
    return ringtune::guarded(false, [&] {
        return ringtune::hand_over(
            ringtune::causal_attention(*together, mask, static_cast<ringtune::AttentionKernel>(kernel)), results);
    });
}

at::Tensor *ringtune_causal_attention_backward(const at::Tensor *together, const at::Tensor *output,
                                               const at::Tensor *kept, const at::Tensor *gradient,
                                               const ringtune_mask *mask, int kernel) {
    return ringtune::guarded<at::Tensor *>(nullptr, [&] {
        return new at::Tensor(ringtune::causal_attention_backward(*together, *output, *kept, *gradient, mask,
                                                                  static_cast<ringtune::AttentionKernel>(kernel)));
    });
}

} // extern "C"
