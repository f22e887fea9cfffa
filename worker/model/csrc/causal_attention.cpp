// Causal attention with its gradient, each as a call of its own: a language model's way back is written out.
#include "language_shim.h"

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

std::vector<Tensor> causal_attention(const Tensor &together, AttentionKernel) {
    check_together(together);
    RINGTUNE_RECORD("causal_attention", together.select(2, 0), together.select(2, 1), together.select(2, 2));
    const auto [output, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(
        part(together, 0), part(together, 1), part(together, 2), 0.0, true);
    return {output.transpose(1, 2).contiguous(), log_sum_exp};
}

Tensor causal_attention_backward(const Tensor &together, const Tensor &output, const Tensor &kept, const Tensor &gradient,
                                 AttentionKernel) {
    check_together(together);
    TORCH_CHECK(output.sizes() == together.select(2, 0).sizes() && gradient.sizes() == output.sizes(),
                "causal attention of ", together.sizes(), " has no output of ", output.sizes(), " with a gradient of ",
                gradient.sizes());
    RINGTUNE_RECORD("causal_attention_backward", together.select(2, 0), together.select(2, 1), together.select(2, 2));
    const auto [query, key, value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient.transpose(1, 2), part(together, 0), part(together, 1), part(together, 2), output.transpose(1, 2), kept, 0.0,
        true);
    const Tensor result = at::empty(together.sizes(), together.options());
    part(result, 0).copy_(query);
    part(result, 1).copy_(key);
    part(result, 2).copy_(value);
    return result;
}

} // namespace

} // namespace ringtune

extern "C" {

bool ringtune_causal_attention(const at::Tensor *together, int kernel, at::Tensor **results) {
    return ringtune::guarded(false, [&] {
        return ringtune::hand_over(
            ringtune::causal_attention(*together, static_cast<ringtune::AttentionKernel>(kernel)), results);
    });
}

at::Tensor *ringtune_causal_attention_backward(const at::Tensor *together, const at::Tensor *output, const at::Tensor *kept,
                                               const at::Tensor *gradient, int kernel) {
    return ringtune::guarded<at::Tensor *>(nullptr, [&] {
        return new at::Tensor(ringtune::causal_attention_backward(*together, *output, *kept, *gradient,
                                                                  static_cast<ringtune::AttentionKernel>(kernel)));
    });
}

} // extern "C"
