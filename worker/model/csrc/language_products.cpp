// A language model's products with its own weights, which lie [inputs, outputs] and change in every step. In bf16 without
// AMX, oneDNN's layer takes the bias in the same sweep: libtorch's addmm first fills the result with it, which took a
// fifteenth of the product's time. For many rows the weights are put in oneDNN's own order first, for this product alone:
// on the way forward turned before that by us, as oneDNN orders what lies turned at 2 GB/s.
#include "language_shim.h"

#include "attention_blocks.h"
#include "bf16_tensors.h"
#include "onednn_linear.h"

#include <ATen/Parallel.h>

#include <optional>

namespace ringtune::training {

namespace {

// From so many rows the order pays for itself: at 2,048 it takes what it saves, at 4,096 it saves 3 to 4 hundredths.
constexpr int64_t ORDERED_FROM_ROWS = 3072;
// The order is that for a product of so many rows, whatever their number: it may decide bits.
constexpr int64_t ORDERED_FOR_ROWS = 1024;
// Columns that are turned as one task.
constexpr int64_t TURNED_AT_ONCE = 64;

void check_product(const Tensor &x, const Tensor &weight, int64_t side) {
    check_activation("x", x, 2);
    check_kind("weights", weight, x.scalar_type(), 2);
    TORCH_CHECK(x.size(1) == weight.size(side), "x is of ", x.sizes(), " for weights of ", weight.sizes());
}

// With AMX nobody has measured it.
bool is_fast(const Tensor &x) { return fits(x) && !flash::amx_supported(); }

// [outputs, inputs] of weights [inputs, outputs].
Tensor turned(const Tensor &weight) {
    const int64_t inputs = weight.size(0), outputs = weight.size(1);
    const Tensor result = at::empty({outputs, inputs}, weight.options());
    const Bf16 *from = numbers<Bf16>(weight);
    Bf16 *to = numbers<Bf16>(result);
    in_parts(outputs, TURNED_AT_ONCE, [&](int64_t first, int64_t count) {
        const flash::Width width{count, count};
        flash::pack_columns({from + first, outputs}, {0, inputs, inputs}, width, to + first * inputs);
    });
    return result;
}

// x W + b.
Tensor times(const Tensor &x, const Tensor &weight, const Tensor &bias) {
    check_product(x, weight, 0);
    if (bias.defined()) {
        check_kind("bias", bias, x.scalar_type(), 1);
        check_sizes("bias", bias, {weight.size(1)});
    }
    RINGTUNE_RECORD("product", x, weight);
    if (!is_fast(x)) {
        return bias.defined() ? at::addmm(bias, x, weight) : at::mm(x, weight);
    }
    const auto offset = bias.defined() ? std::optional(bias) : std::nullopt;
    const bool many = x.size(0) >= ORDERED_FROM_ROWS;
    return onednn::linear(x, many ? onednn::ordered(turned(weight), ORDERED_FOR_ROWS) : weight.t(), offset);
}

// x WT.
Tensor times_turned(const Tensor &x, const Tensor &weight) {
    check_product(x, weight, 1);
    RINGTUNE_RECORD("product_back", x, weight);
    if (!is_fast(x) || x.size(0) < ORDERED_FROM_ROWS) {
        return at::mm(x, weight.t());
    }
    return onednn::linear(x, onednn::ordered(weight, ORDERED_FOR_ROWS), std::nullopt);
}

} // namespace

} // namespace ringtune::training

extern "C" {

at::Tensor *ringtune_language_times(const at::Tensor *x, const at::Tensor *weight, const at::Tensor *bias) {
    return ringtune::guarded<at::Tensor *>(nullptr, [&] {
        using namespace ringtune::training;
        return own(times(*x, *weight, or_none(bias)));
    });
}

at::Tensor *ringtune_language_times_turned(const at::Tensor *x, const at::Tensor *weight) {
    return ringtune::guarded<at::Tensor *>(
        nullptr, [&] { return ringtune::training::own(ringtune::training::times_turned(*x, *weight)); });
}

} // extern "C"
