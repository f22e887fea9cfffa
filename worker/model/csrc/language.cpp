// language_kernels.h for libtorch's tensors, on its threads: checks shapes and kinds, and divides the work.
#include "language_shim.h"

#include "language_kernels.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ringtune::training {

namespace {

using at::Tensor;
using ringtune::language::Bf16;
using ringtune::language::STRETCH;

// Numbers that are one task of an elementwise sweep, and one part of a sum.
constexpr int64_t PART = int64_t(1) << 14;

void check_kind(const char *what, const Tensor &tensor, at::ScalarType kind, int64_t dimensions = -1) {
    TORCH_CHECK(tensor.scalar_type() == kind && tensor.is_contiguous() && tensor.device().is_cpu() &&
                    (dimensions < 0 || tensor.dim() == dimensions),
                what, " is ", tensor.scalar_type(), " ", tensor.sizes(), ", allowed is contiguous ", kind,
                dimensions < 0 ? std::string() : " of " + std::to_string(dimensions) + " dimensions");
}

void check_floats(const char *what, const Tensor &tensor, int64_t dimensions = -1) {
    check_kind(what, tensor, at::kFloat, dimensions);
}

void check_sizes(const char *what, const Tensor &tensor, at::IntArrayRef sizes) {
    TORCH_CHECK(tensor.sizes() == sizes, what, " is of ", tensor.sizes(), ", allowed is ", sizes);
}

at::ScalarType activation_kind(const Tensor &tensor) {
    return tensor.scalar_type() == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

// fp32 or bf16, as activations are.
void check_activation(const char *what, const Tensor &tensor, int64_t dimensions = -1) {
    check_kind(what, tensor, activation_kind(tensor), dimensions);
}

// The same, a matrix whose rows may lie apart.
void check_rows(const char *what, const Tensor &tensor) {
    TORCH_CHECK(tensor.scalar_type() == activation_kind(tensor) && tensor.dim() == 2 && tensor.device().is_cpu() &&
                    (tensor.size(1) <= 1 || tensor.stride(1) == 1) && tensor.stride(0) >= tensor.size(1),
                what, " is ", tensor.scalar_type(), " ", tensor.sizes(), " of strides ", tensor.strides(),
                ", allowed are rows of activations");
}

template <typename Element> Element *numbers(const Tensor &tensor) {
    return tensor.defined() ? static_cast<Element *>(tensor.data_ptr()) : nullptr;
}

float *floats(const Tensor &tensor) { return numbers<float>(tensor); }
Tensor or_none(const Tensor *tensor) { return tensor == nullptr ? Tensor() : *tensor; }

// body(Element{}) for the kind of an activation.
template <typename Body> void of_kind(const Tensor &activation, Body body) {
    if (activation.scalar_type() == at::kBFloat16) {
        body(Bf16{});
    } else {
        body(float{});
    }
}

// body(first, count) for stretches of `each` of `all`; the last has what is left.
template <typename Body> void in_parts(int64_t all, int64_t each, Body body) {
    at::parallel_for(0, (all + each - 1) / each, 1, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) {
            body(part * each, std::min(each, all - part * each));
        }
    });
}

Tensor embed(const Tensor &wte, const Tensor &wpe, const Tensor &ids) {
    check_floats("wte", wte, 2);
    check_floats("wpe", wpe, 2);
    check_kind("ids", ids, at::kLong, 2);
    const int64_t tokens = ids.size(1), width = wte.size(1);
    TORCH_CHECK(wpe.size(1) == width && tokens <= wpe.size(0), "wpe is of ", wpe.sizes(), " for ", tokens,
                " tokens of ", width);
    RINGTUNE_RECORD("embed", wte, wpe, ids);
    const Tensor result = at::empty({ids.numel(), width}, wte.options());
    const int64_t *which = ids.const_data_ptr<int64_t>();
    in_parts(ids.numel(), STRETCH, [&](int64_t first, int64_t count) {
        for (int64_t row = first; row < first + count; ++row) {
            const float *token = floats(wte) + which[row] * width, *place = floats(wpe) + row % tokens * width;
            std::transform(token, token + width, place, floats(result) + row * width, std::plus<float>());
        }
    });
    return result;
}

void put_rows(const Tensor &x, const Tensor &places, bool add, const Tensor &target) {
    check_floats("x", x, 2);
    check_floats("target", target, 2);
    check_kind("places", places, at::kLong, 1);
    const int64_t rows = places.numel(), width = target.size(1), all = target.size(0);
    check_sizes("x", x, {rows, width});
    const int64_t *which = places.const_data_ptr<int64_t>();
    TORCH_CHECK(std::all_of(which, which + rows, [&](int64_t place) { return place >= 0 && place < all; }),
                "places are not all among ", all, " rows");
    RINGTUNE_RECORD("put_rows", x, places, target);
    // Rows of one place lie together, in their order: one thread adds them, however many there are.
    std::vector<int64_t> starts(all + 1), order(rows);
    ringtune::language::by_places(rows, which, all, starts.data(), order.data());
    in_parts(all, STRETCH / 4, [&](int64_t first, int64_t count) {
        for (int64_t place = first; place < first + count; ++place) {
            ringtune::language::sum_of_rows(width, floats(x), order.data() + starts[place],
                                            starts[place + 1] - starts[place], add, floats(target) + place * width);
        }
    });
}

void place_backward(const Tensor &gradient, int64_t tokens, int64_t first, bool add, const Tensor &target) {
    check_floats("gradient", gradient, 2);
    check_floats("target", target, 2);
    const int64_t width = target.size(1), all = gradient.size(0);
    TORCH_CHECK(tokens > 0 && all % tokens == 0 && gradient.size(1) == width, "gradient is of ", gradient.sizes(),
                " for ", tokens, " tokens");
    RINGTUNE_RECORD("place_backward", gradient, target);
    in_parts(target.size(0), STRETCH, [&](int64_t begin, int64_t count) {
        for (int64_t row = begin; row < begin + count; ++row) {
            const int64_t place = first + row;
            const int64_t parts = place < tokens ? all / tokens : 0;
            ringtune::language::add_up(width, floats(gradient) + place * width, parts, tokens * width, add,
                                       floats(target) + row * width);
        }
    });
}

std::vector<Tensor> norm(const Tensor &x, const Tensor &added, const Tensor &weight, const Tensor &bias, double epsilon,
                         bool low) {
    check_floats("x", x, 2);
    check_floats("weight", weight, 1);
    const int64_t rows = x.size(0), width = x.size(1);
    check_sizes("weight", weight, {width});
    const auto kind = low ? at::kBFloat16 : at::kFloat;
    if (added.defined()) {
        check_kind("what is added", added, kind, 2);
        check_sizes("what is added", added, x.sizes());
    }
    if (bias.defined()) {
        check_floats("bias", bias, 1);
        check_sizes("bias", bias, {width});
    }
    RINGTUNE_RECORD("add_and_norm", x, added);
    const Tensor y = at::empty(x.sizes(), x.options().dtype(kind)), statistics = at::empty({rows, 2}, x.options());
    const Tensor sum = added.defined() ? at::empty(x.sizes(), x.options()) : x;
    of_kind(y, [&](auto element) {
        using Element = decltype(element);
        in_parts(rows, STRETCH, [&](int64_t first, int64_t count) {
            const int64_t at = first * width;
            ringtune::language::add_and_norm<Element>(count, width, floats(x) + at,
                                                      added.defined() ? numbers<Element>(added) + at : nullptr,
                                                      {floats(weight), floats(bias)}, float(epsilon), floats(sum) + at,
                                                      numbers<Element>(y) + at, floats(statistics) + first * 2);
        });
    });
    return {sum, y, statistics};
}

std::vector<Tensor> norm_backward(const Tensor &gradient, const Tensor &x, const Tensor &statistics,
                                  const Tensor &weight, const Tensor &residual) {
    check_activation("gradient", gradient, 2);
    check_floats("x", x, 2);
    check_floats("statistics", statistics, 2);
    check_floats("weight", weight, 1);
    check_floats("residual", residual, 2);
    const int64_t rows = x.size(0), width = x.size(1);
    check_sizes("gradient", gradient, x.sizes());
    check_sizes("residual", residual, x.sizes());
    check_sizes("statistics", statistics, {rows, 2});
    check_sizes("weight", weight, {width});
    RINGTUNE_RECORD("add_and_norm_backward", gradient, x, residual);
    const bool is_low = gradient.scalar_type() == at::kBFloat16;
    const Tensor low = is_low ? at::empty(x.sizes(), gradient.options()) : residual;
    const int64_t stretches = (rows + STRETCH - 1) / STRETCH;
    const Tensor parts = at::empty({stretches, 2, width}, x.options());
    of_kind(gradient, [&](auto element) {
        using Element = decltype(element);
        in_parts(rows, STRETCH, [&](int64_t first, int64_t count) {
            const int64_t at = first * width;
            ringtune::language::norm_backward<Element>(
                count, width, floats(x) + at, floats(statistics) + first * 2, floats(weight),
                numbers<Element>(gradient) + at, floats(residual) + at, is_low ? numbers<Element>(low) + at : nullptr,
                floats(parts) + first / STRETCH * 2 * width);
        });
    });
    const Tensor sums = at::empty({2, width}, x.options());
    ringtune::language::add_up(2 * width, floats(parts), stretches, 2 * width, false, floats(sums));
    return {low, sums};
}

Tensor gelu(const Tensor &x) {
    check_activation("x", x);
    RINGTUNE_RECORD("gelu", x);
    const Tensor y = at::empty(x.sizes(), x.options());
    of_kind(x, [&](auto element) {
        using Element = decltype(element);
        in_parts(x.numel(), PART, [&](int64_t first, int64_t count) {
            ringtune::language::gelu<Element>(count, numbers<Element>(x) + first, numbers<Element>(y) + first);
        });
    });
    return y;
}

Tensor gelu_backward(const Tensor &x, const Tensor &gradient) {
    check_activation("x", x, 2);
    check_kind("gradient", gradient, x.scalar_type());
    check_sizes("gradient", gradient, x.sizes());
    RINGTUNE_RECORD("gelu_backward", x, gradient);
    const int64_t rows = x.size(0), width = x.size(1), stretches = (rows + STRETCH - 1) / STRETCH;
    const auto fp32 = x.options().dtype(at::kFloat);
    const Tensor parts = at::empty({stretches, width}, fp32), sums = at::empty({width}, fp32);
    of_kind(x, [&](auto element) {
        using Element = decltype(element);
        in_parts(rows, STRETCH, [&](int64_t first, int64_t count) {
            Element *slopes = numbers<Element>(gradient) + first * width;
            ringtune::language::gelu_backward<Element>(count * width, numbers<Element>(x) + first * width, slopes);
            // While they are in the cache.
            ringtune::language::column_sums<Element>(count, width, slopes, floats(parts) + first / STRETCH * width);
        });
    });
    ringtune::language::add_up(width, floats(parts), stretches, width, false, floats(sums));
    return sums;
}

void column_sums(const Tensor &x, bool add, const Tensor &target) {
    check_activation("x", x, 2);
    check_floats("target", target, 1);
    const int64_t rows = x.size(0), width = x.size(1), stretches = (rows + STRETCH - 1) / STRETCH;
    check_sizes("target", target, {width});
    RINGTUNE_RECORD("column_sums", x);
    const Tensor parts = at::empty({stretches, width}, target.options());
    of_kind(x, [&](auto element) {
        using Element = decltype(element);
        in_parts(rows, STRETCH, [&](int64_t first, int64_t count) {
            ringtune::language::column_sums<Element>(count, width, numbers<Element>(x) + first * width,
                                                     floats(parts) + first / STRETCH * width);
        });
    });
    ringtune::language::add_up(width, floats(parts), stretches, width, add, floats(target));
}

Tensor cross_entropy(const Tensor &logits, const Tensor &targets, bool gradient, double scale) {
    check_rows("logits", logits);
    check_kind("targets", targets, at::kLong, 1);
    const int64_t rows = logits.size(0), width = logits.size(1), stride = logits.stride(0);
    check_sizes("targets", targets, {rows});
    const int64_t *which = targets.const_data_ptr<int64_t>();
    TORCH_CHECK(std::all_of(which, which + rows, [&](int64_t id) { return id >= 0 && id < width; }),
                "targets are not all ids of ", width, " tokens");
    RINGTUNE_RECORD("cross_entropy", logits);
    const Tensor losses = at::empty({rows}, logits.options().dtype(at::kFloat));
    of_kind(logits, [&](auto element) {
        using Element = decltype(element);
        in_parts(rows, 4, [&](int64_t first, int64_t count) {
            // A row's powers stay in a core's own cache until its gradient is made of them.
            const Buffer<float> powers = allocate<float>(gradient ? width : 0);
            for (int64_t row = first; row < first + count; ++row) {
                ringtune::language::cross_entropy<Element>(1, width, numbers<Element>(logits) + row * stride,
                                                           which + row, float(scale), gradient ? powers.get() : nullptr,
                                                           floats(losses) + row);
            }
        });
    });
    return losses;
}

// Whether all of the stretches of `each` that `all` numbers are put in are finite: body(first, count) says so of one.
template <typename Body> bool all_finite(int64_t all, int64_t each, Body body) {
    std::vector<char> parts((all + each - 1) / each);
    in_parts(all, each, [&](int64_t first, int64_t count) { parts[first / each] = body(first, count); });
    return std::all_of(parts.begin(), parts.end(), [](char part) { return part != 0; });
}

bool put(const Tensor &x, bool add, const Tensor &target) {
    check_activation("x", x);
    check_floats("target", target);
    TORCH_CHECK(x.numel() == target.numel(), "x is of ", x.sizes(), ", its target of ", target.sizes());
    RINGTUNE_RECORD("put", x, target);
    bool finite = true;
    of_kind(x, [&](auto element) {
        using Element = decltype(element);
        finite = all_finite(x.numel(), PART, [&](int64_t first, int64_t count) {
            ringtune::language::put<Element>(count, numbers<Element>(x) + first, add, floats(target) + first);
            return ringtune::language::finite(count, floats(target) + first);
        });
    });
    return finite;
}

bool put_turned(const Tensor &x, bool add, const Tensor &target) {
    check_rows("x", x);
    check_floats("target", target, 2);
    const int64_t rows = target.size(0), width = target.size(1);
    check_sizes("x", x, {width, rows});
    RINGTUNE_RECORD("put_turned", x, target);
    bool finite = true;
    of_kind(x, [&](auto element) {
        using Element = decltype(element);
        finite = all_finite(rows, STRETCH, [&](int64_t first, int64_t count) {
            float *place = floats(target) + first * width;
            ringtune::language::put_turned<Element>(count, width, numbers<Element>(x) + first, x.stride(0), add, place);
            return ringtune::language::finite(count * width, place);
        });
    });
    return finite;
}

void check_mask(const char *what, const ringtune_mask *mask, int64_t samples) {
    TORCH_CHECK(mask == nullptr || mask->samples == samples, what, " has ", samples, " samples, its mask ",
                mask == nullptr ? 0 : mask->samples);
}

void drop(const Tensor &x, const ringtune_mask &mask) {
    check_activation("x", x, 2);
    const int64_t rows = x.size(0), width = x.size(1);
    TORCH_CHECK(mask.samples > 0 && rows % mask.samples == 0, "x is of ", x.sizes(), " for ", mask.samples, " samples");
    RINGTUNE_RECORD("drop", x);
    const int64_t tokens = rows / mask.samples;
    of_kind(x, [&](auto element) {
        using Element = decltype(element);
        in_parts(rows, STRETCH, [&](int64_t first, int64_t count) {
            std::vector<float> factors(width);
            for (int64_t row = first; row < first + count; ++row) {
                ringtune::dropout::factors(mask, row / tokens, row % tokens, width, factors.data());
                ringtune::language::multiply<Element>(width, factors.data(), numbers<Element>(x) + row * width);
            }
        });
    });
}

Tensor *own(const Tensor &tensor) { return new Tensor(tensor); }

} // namespace

} // namespace ringtune::training

extern "C" {

at::Tensor *ringtune_language_embed(const at::Tensor *wte, const at::Tensor *wpe, const at::Tensor *ids) {
    return ringtune::guarded<at::Tensor *>(
        nullptr, [&] { return ringtune::training::own(ringtune::training::embed(*wte, *wpe, *ids)); });
}

bool ringtune_language_put_rows(const at::Tensor *x, const at::Tensor *places, bool add, at::Tensor *target) {
    return ringtune::guarded(false, [&] { return ringtune::training::put_rows(*x, *places, add, *target), true; });
}

bool ringtune_language_place_backward(const at::Tensor *gradient, int64_t tokens, int64_t first, bool add,
                                      at::Tensor *target) {
    return ringtune::guarded(
        false, [&] { return ringtune::training::place_backward(*gradient, tokens, first, add, *target), true; });
}

bool ringtune_language_norm(const at::Tensor *x, const at::Tensor *added, const at::Tensor *weight,
                            const at::Tensor *bias, double epsilon, bool low, at::Tensor **results) {
    return ringtune::guarded(false, [&] {
        return ringtune::hand_over(ringtune::training::norm(*x, ringtune::training::or_none(added), *weight,
                                                            ringtune::training::or_none(bias), epsilon, low),
                                   results);
    });
}

bool ringtune_language_norm_backward(const at::Tensor *gradient, const at::Tensor *x, const at::Tensor *statistics,
                                     const at::Tensor *weight, at::Tensor *residual, at::Tensor **results) {
    return ringtune::guarded(false, [&] {
        return ringtune::hand_over(ringtune::training::norm_backward(*gradient, *x, *statistics, *weight, *residual),
                                   results);
    });
}

at::Tensor *ringtune_language_gelu(const at::Tensor *x) {
    return ringtune::guarded<at::Tensor *>(nullptr,
                                           [&] { return ringtune::training::own(ringtune::training::gelu(*x)); });
}

at::Tensor *ringtune_language_gelu_backward(const at::Tensor *x, at::Tensor *gradient) {
    return ringtune::guarded<at::Tensor *>(
        nullptr, [&] { return ringtune::training::own(ringtune::training::gelu_backward(*x, *gradient)); });
}

bool ringtune_language_column_sums(const at::Tensor *x, bool add, at::Tensor *target) {
    return ringtune::guarded(false, [&] { return ringtune::training::column_sums(*x, add, *target), true; });
}

at::Tensor *ringtune_language_cross_entropy(at::Tensor *logits, const at::Tensor *targets, bool gradient,
                                            double scale) {
    return ringtune::guarded<at::Tensor *>(nullptr, [&] {
        return ringtune::training::own(ringtune::training::cross_entropy(*logits, *targets, gradient, scale));
    });
}

int ringtune_language_put(const at::Tensor *x, bool add, at::Tensor *target) {
    return ringtune::guarded(-1, [&] { return int(ringtune::training::put(*x, add, *target)); });
}

int ringtune_language_put_turned(const at::Tensor *x, bool add, at::Tensor *target) {
    return ringtune::guarded(-1, [&] { return int(ringtune::training::put_turned(*x, add, *target)); });
}

bool ringtune_language_drop(at::Tensor *x, const ringtune_mask *mask) {
    return ringtune::guarded(false, [&] { return ringtune::training::drop(*x, *mask), true; });
}

} // extern "C"
