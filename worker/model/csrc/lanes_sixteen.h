// Sixteen fp32 numbers at once, for processors with AVX-512: what the *_body.h of fused_kernels.h and float_layers.h are
// written in, as lanes_eight.h has it for AVX2.
#pragma once

#include "attention_blocks.h"

namespace ringtune::sixteen {

using Vector = __m512;
using Lanes = __mmask16;
using flash::exp2_of;
using flash::LANES;

// The lanes of a vector that starts at `column`: all, or those before `end`.
RINGTUNE_WIDE static inline Lanes lanes_before(int64_t column, int64_t end) {
    return end - column >= LANES ? Lanes(0xFFFF) : Lanes((1u << (end - column)) - 1);
}

// Zero where there is no lane.
RINGTUNE_WIDE static inline Vector load(Lanes lanes, const float *place) { return _mm512_maskz_loadu_ps(lanes, place); }
RINGTUNE_WIDE static inline Vector load(const float *place) { return _mm512_loadu_ps(place); }

RINGTUNE_WIDE static inline void store(Lanes lanes, float *place, Vector values) {
    _mm512_mask_storeu_ps(place, lanes, values);
}
RINGTUNE_WIDE static inline void store(float *place, Vector values) { _mm512_storeu_ps(place, values); }

RINGTUNE_WIDE static inline Vector zero() { return _mm512_setzero_ps(); }
RINGTUNE_WIDE static inline Vector all(float value) { return _mm512_set1_ps(value); }
RINGTUNE_WIDE static inline Vector plus(Vector a, Vector b) { return _mm512_add_ps(a, b); }
RINGTUNE_WIDE static inline Vector minus(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
RINGTUNE_WIDE static inline Vector times(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
// a b + c, rounded once; a b - c; and c - a b.
RINGTUNE_WIDE static inline Vector times_plus(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
RINGTUNE_WIDE static inline Vector times_minus(Vector a, Vector b, Vector c) { return _mm512_fmsub_ps(a, b, c); }
RINGTUNE_WIDE static inline Vector minus_times(Vector a, Vector b, Vector c) { return _mm512_fnmadd_ps(a, b, c); }
// a - b; zero where there is no lane.
RINGTUNE_WIDE static inline Vector minus(Lanes lanes, Vector a, Vector b) { return _mm512_maskz_sub_ps(lanes, a, b); }
// `b` where one is NaN.
RINGTUNE_WIDE static inline Vector greater(Vector a, Vector b) { return _mm512_max_ps(a, b); }
RINGTUNE_WIDE static inline bool any_differs(Vector a, Vector b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ) != 0;
}
RINGTUNE_WIDE static inline float sum_of(Vector values) { return _mm512_reduce_add_ps(values); }
RINGTUNE_WIDE static inline Vector size_of(Vector values) { return _mm512_abs_ps(values); }

// 1 - tail where x is not below zero.
RINGTUNE_WIDE static inline Vector mirrored(Vector x, Vector tail) {
    const __mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GE_OQ);
    return _mm512_mask_sub_ps(tail, positive, _mm512_set1_ps(1.0f), tail);
}

// 1 / x for x from 1 on, with a relative error below 2e-7: the processor's estimate and one step of Newton's. Above
// 2^125, where the step would meet infinity, it is 0; NaN stays NaN.
RINGTUNE_WIDE static inline Vector reciprocal(Vector x) {
    const __mmask16 small = _mm512_cmp_ps_mask(x, _mm512_set1_ps(0x1p125f), _CMP_NGT_UQ);
    const __m512 estimate = _mm512_rcp14_ps(x);
    const __m512 rest = _mm512_fnmadd_ps(x, estimate, _mm512_set1_ps(1.0f));
    return _mm512_maskz_fmadd_ps(small, estimate, rest, estimate);
}

// 2^x for x up to 127.
RINGTUNE_WIDE static inline Vector small_exp2_of(Vector x) { return exp2_of(x); }

// `sums`: LANES of them.
RINGTUNE_WIDE static inline void add_to(double *sums, Vector more) {
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(more)), high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(more, 1));
    _mm512_storeu_pd(sums, _mm512_add_pd(_mm512_loadu_pd(sums), low));
    _mm512_storeu_pd(sums + 8, _mm512_add_pd(_mm512_loadu_pd(sums + 8), high));
}

} // namespace ringtune::sixteen
