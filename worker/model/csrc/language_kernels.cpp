// The kernels of language_kernels.h twice: for processors with AVX-512, and for all others.
#include "language_kernels.h"

#include "attention_kernels.h"

namespace ringtune::language {

namespace {

constexpr int64_t LANES = 16;

namespace portable {
#include "language_lanes.h"

#include "language_body.h"
} // namespace portable

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512")
#undef RINGTUNE_INLINE
namespace wide {
#include "language_lanes.h"

#include "language_body.h"
} // namespace wide
#pragma GCC pop_options

} // namespace

// What the fastest that runs here says.
#define RINGTUNE_CHOSEN(name, ...) (flash::wide() ? wide::name(__VA_ARGS__) : portable::name(__VA_ARGS__))

template <typename Element>
void add_and_norm(int64_t rows, int64_t width, const float *x, const Element *added, Affine affine, float epsilon,
                  float *sum, Element *y, float *statistics) {
    return RINGTUNE_CHOSEN(add_and_norm, rows, width, x, added, affine, epsilon, sum, y, statistics);
}

template <typename Element>
void norm_backward(int64_t rows, int64_t width, const float *x, const float *statistics, const float *weight,
                   const Element *gradient, float *residual, Element *low, float *parts) {
    return RINGTUNE_CHOSEN(norm_backward, rows, width, x, statistics, weight, gradient, residual, low, parts);
}

template <typename Element> void gelu(int64_t count, const Element *x, Element *y) {
    return RINGTUNE_CHOSEN(gelu, count, x, y);
}

template <typename Element> void gelu_backward(int64_t count, const Element *x, Element *gradient) {
    return RINGTUNE_CHOSEN(gelu_backward, count, x, gradient);
}

template <typename Element> void column_sums(int64_t rows, int64_t width, const Element *x, float *sums) {
    return RINGTUNE_CHOSEN(column_sums, rows, width, x, sums);
}

template <typename Element>
void cross_entropy(int64_t rows, int64_t width, Element *logits, const int64_t *targets, float scale, float *powers,
                   float *losses) {
    return RINGTUNE_CHOSEN(cross_entropy, rows, width, logits, targets, scale, powers, losses);
}

template <typename Element> void put(int64_t count, const Element *source, bool add, float *target) {
    return RINGTUNE_CHOSEN(put, count, source, add, target);
}

template <typename Element>
void put_turned(int64_t rows, int64_t width, const Element *source, int64_t stride, bool add, float *target) {
    return RINGTUNE_CHOSEN(put_turned, rows, width, source, stride, add, target);
}

template <typename Element> void multiply(int64_t count, const float *factors, Element *x) {
    return RINGTUNE_CHOSEN(multiply, count, factors, x);
}

// What is a template above is there for both.
#define RINGTUNE_FOR(Element)                                                                                          \
    template void add_and_norm(int64_t, int64_t, const float *, const Element *, Affine, float, float *, Element *,    \
                               float *);                                                                               \
    template void norm_backward(int64_t, int64_t, const float *, const float *, const float *, const Element *,        \
                                float *, Element *, float *);                                                          \
    template void gelu(int64_t, const Element *, Element *);                                                           \
    template void gelu_backward(int64_t, const Element *, Element *);                                                  \
    template void column_sums(int64_t, int64_t, const Element *, float *);                                             \
    template void cross_entropy(int64_t, int64_t, Element *, const int64_t *, float, float *, float *);                \
    template void put(int64_t, const Element *, bool, float *);                                                        \
    template void put_turned(int64_t, int64_t, const Element *, int64_t, bool, float *);                               \
    template void multiply(int64_t, const float *, Element *);

RINGTUNE_FOR(float)
RINGTUNE_FOR(Bf16)

void add_up(int64_t width, const float *parts, int64_t count, int64_t distance, bool add, float *target) {
    return RINGTUNE_CHOSEN(add_up, width, parts, count, distance, add, target);
}

void sum_of_rows(int64_t width, const float *x, const int64_t *rows, int64_t count, bool add, float *target) {
    return RINGTUNE_CHOSEN(sum_of_rows, width, x, rows, count, add, target);
}

void by_places(int64_t rows, const int64_t *places, int64_t count, int64_t *starts, int64_t *order) {
    // 1. Rows of each place, and from there where each ends.
    for (int64_t place = 0; place <= count; ++place) {
        starts[place] = 0;
    }
    for (int64_t row = 0; row < rows; ++row) {
        ++starts[places[row]];
    }
    for (int64_t place = 1; place <= count; ++place) {
        starts[place] += starts[place - 1];
    }
    // 2. From its end on, the last row first.
    for (int64_t row = rows; row-- > 0;) {
        order[--starts[places[row]]] = row;
    }
}

void dropped_softmax(int64_t rows, int64_t keys, int64_t first, float scale, const float *factors, float *scores,
                     float *log_sums) {
    return RINGTUNE_CHOSEN(dropped_softmax, rows, keys, first, scale, factors, scores, log_sums);
}

void dropped_softmax_backward(int64_t rows, int64_t keys, int64_t first, float scale, const float *factors,
                              const float *log_sums, const float *dots, float *scores, float *slopes) {
    return RINGTUNE_CHOSEN(dropped_softmax_backward, rows, keys, first, scale, factors, log_sums, dots, scores, slopes);
}

double squares(int64_t count, const float *x) { return RINGTUNE_CHOSEN(squares, count, x); }

bool finite(int64_t count, const float *x) { return RINGTUNE_CHOSEN(finite, count, x); }

void adamw(int64_t count, const AdamW &step, const float *gradient, Moved moved) {
    return RINGTUNE_CHOSEN(adamw, count, step, gradient, moved);
}

} // namespace ringtune::language
