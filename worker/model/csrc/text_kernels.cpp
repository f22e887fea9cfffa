// The kernels of text_kernels.h twice, as language_kernels.cpp compiles its own.
#include "text_kernels.h"

#include "attention_kernels.h"

namespace ringtune::text {

namespace {

constexpr int64_t LANES = 16;

namespace portable {
#include "language_lanes.h"

#include "text_body.h"
} // namespace portable

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512")
#undef RINGTUNE_INLINE
namespace wide {
#include "language_lanes.h"

#include "text_body.h"
} // namespace wide
#pragma GCC pop_options

} // namespace

void spread(int64_t width, const float *x, float *factors) {
    flash::wide() ? wide::spread(width, x, factors) : portable::spread(width, x, factors);
}

void spread(int64_t width, const Bf16 *x, float *factors) {
    flash::wide() ? wide::spread(width, x, factors) : portable::spread(width, x, factors);
}


template <typename Element, typename Out>
void times_rows(int64_t rows, int64_t width, const float *factors, const Element *matrix, const Element *bias,
                Out *result) {
    return flash::wide() ? wide::times_rows(rows, width, factors, matrix, bias, result)
                         : portable::times_rows(rows, width, factors, matrix, bias, result);
}

template <typename Element>
void attend(int64_t tokens, int64_t width, const Element *query, const Element *keys, const Element *values,
            float *weights, Element *result) {
    return flash::wide() ? wide::attend(tokens, width, query, keys, values, weights, result)
                         : portable::attend(tokens, width, query, keys, values, weights, result);
}

template void times_rows(int64_t, int64_t, const float *, const float *, const float *, float *);
template void times_rows(int64_t, int64_t, const float *, const Bf16 *, const Bf16 *, Bf16 *);
template void times_rows(int64_t, int64_t, const float *, const Bf16 *, const Bf16 *, float *);
template void attend(int64_t, int64_t, const float *, const float *, const float *, float *, float *);
template void attend(int64_t, int64_t, const Bf16 *, const Bf16 *, const Bf16 *, float *, Bf16 *);

} // namespace ringtune::text
