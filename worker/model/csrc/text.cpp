// text_kernels.h for libtorch's tensors, on its threads: checks shapes and kinds, and divides the work. Behind language.cpp,
// whose checks it uses.
#include "text_shim.h"

#include "text_kernels.h"

namespace ringtune::training {

namespace {

// Rows of a matrix that are one task of a product.
constexpr int64_t ROWS = 64;

Tensor times_rows(const Tensor &x, const Tensor &matrix, const Tensor &bias, bool to_floats) {
    check_activation("x", x, 2);
    check_kind("the matrix", matrix, x.scalar_type(), 2);
    const int64_t rows = matrix.size(0), width = matrix.size(1);
    check_sizes("x", x, {1, width});
    if (bias.defined()) {
        check_kind("the bias", bias, x.scalar_type(), 1);
        check_sizes("the bias", bias, {rows});
    }
    RINGTUNE_RECORD("times_rows", x, matrix);
    const auto kind = to_floats ? at::kFloat : x.scalar_type();
    const Tensor result = at::empty({1, rows}, x.options().dtype(kind)),
                 factors = at::empty({width}, x.options().dtype(at::kFloat));
    of_kind(matrix, [&](auto element) {
        using Element = decltype(element);
        ringtune::text::spread(width, numbers<const Element>(x), floats(factors));
        in_parts(rows, ROWS, [&](int64_t first, int64_t count) {
            const Element *part = numbers<Element>(matrix) + first * width;
            const Element *added = bias.defined() ? numbers<Element>(bias) + first : nullptr;
            if (kind == at::kFloat) {
                ringtune::text::times_rows<Element, float>(count, width, floats(factors), part, added,
                                                           floats(result) + first);
            } else {
                ringtune::text::times_rows<Bf16, Bf16>(count, width, floats(factors),
                                                       reinterpret_cast<const Bf16 *>(part),
                                                       reinterpret_cast<const Bf16 *>(added),
                                                       numbers<Bf16>(result) + first);
            }
        });
    });
    return result;
}

// [heads, positions, width]
void check_cache(const char *what, const Tensor &cache, const Tensor &together, int64_t past) {
    check_kind(what, cache, together.scalar_type(), 3);
    TORCH_CHECK(cache.size(0) == together.size(2) && cache.size(2) == together.size(3) && past >= 0 &&
                    past + together.size(0) <= cache.size(1),
                what, " are of ", cache.sizes(), " for ", together.sizes(), " behind ", past);
}

void remember(const Tensor &together, int64_t past, const Tensor &keys, const Tensor &values) {
    check_activation("queries, keys and values", together, 4);
    TORCH_CHECK(together.size(1) == 3, "queries, keys and values are of ", together.sizes());
    check_cache("keys", keys, together, past);
    check_cache("values", values, together, past);
    RINGTUNE_RECORD("remember", together);
    const int64_t tokens = together.size(0);
    for (const auto &[cache, part] : {std::pair{keys, 1}, std::pair{values, 2}}) {
        cache.narrow(1, past, tokens).copy_(together.select(1, part).transpose(0, 1));
    }
}

Tensor attend(const Tensor &together, int64_t past, const Tensor &keys, const Tensor &values) {
    check_activation("queries, keys and values", together, 4);
    TORCH_CHECK(together.size(1) == 3, "queries, keys and values are of ", together.sizes());
    check_cache("keys", keys, together, past);
    check_cache("values", values, together, past);
    RINGTUNE_RECORD("attend", together, keys, values);
    const int64_t tokens = together.size(0), heads = together.size(2), width = together.size(3);
    const int64_t positions = keys.size(1), longest = past + tokens;
    const Tensor result = at::empty({tokens, heads * width}, together.options());
    of_kind(together, [&](auto element) {
        using Element = decltype(element);
        at::parallel_for(0, tokens * heads, 1, [&](int64_t begin, int64_t end) {
            std::vector<float> weights(longest);
            for (int64_t task = begin; task < end; ++task) {
                const int64_t token = task / heads, head = task % heads;
                ringtune::text::attend<Element>(past + token + 1, width,
                                                numbers<Element>(together) + (token * 3 * heads + head) * width,
                                                numbers<Element>(keys) + head * positions * width,
                                                numbers<Element>(values) + head * positions * width, weights.data(),
                                                numbers<Element>(result) + task * width);
            }
        });
    });
    return result;
}

} // namespace

} // namespace ringtune::training

extern "C" {

at::Tensor *ringtune_text_times_rows(const at::Tensor *x, const at::Tensor *matrix, const at::Tensor *bias,
                                     bool to_floats) {
    return ringtune::guarded<at::Tensor *>(nullptr, [&] {
        return ringtune::training::own(
            ringtune::training::times_rows(*x, *matrix, ringtune::training::or_none(bias), to_floats));
    });
}

bool ringtune_text_remember(const at::Tensor *together, int64_t past, at::Tensor *keys, at::Tensor *values) {
    return ringtune::guarded(false,
                             [&] { return ringtune::training::remember(*together, past, *keys, *values), true; });
}

at::Tensor *ringtune_text_attend(const at::Tensor *together, int64_t past, const at::Tensor *keys,
                                 const at::Tensor *values) {
    return ringtune::guarded<at::Tensor *>(nullptr, [&] {
        return ringtune::training::own(ringtune::training::attend(*together, past, *keys, *values));
    });
}

} // extern "C"
