// Sixteen values at once that lie in memory as bf16, for processors with AVX-512 BF16: what fused_body.h and layer_norm_body.h
// are written in.
#pragma once

#include "attention_blocks.h"
#include "fused_kernels.h"

#define RINGTUNE_TARGET RINGTUNE_AVX512

namespace ringtune::fused {

using Element = Bf16;
using Vector = __m512;
using Lanes = __mmask16;
using flash::exp2_of;
using flash::LANES;
using flash::LOG2_E;

// The lanes of a vector that starts at `column`: all, or those before `end`.
RINGTUNE_AVX512 static inline Lanes lanes_before(int64_t column, int64_t end) {
    return end - column >= LANES ? Lanes(0xFFFF) : Lanes((1u << (end - column)) - 1);
}

// Zero where there is no lane.
RINGTUNE_AVX512 static inline Vector load(Lanes lanes, const Bf16 *place) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, place));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

RINGTUNE_AVX512 static inline Vector load(Lanes lanes, const float *place) { return _mm512_maskz_loadu_ps(lanes, place); }

RINGTUNE_AVX512 static inline void store(Lanes lanes, Bf16 *place, Vector values) {
    _mm256_mask_storeu_epi16(place, lanes, (__m256i)_mm512_cvtneps_pbh(values));
}

RINGTUNE_AVX512 static inline void store(Lanes lanes, float *place, Vector values) {
    _mm512_mask_storeu_ps(place, lanes, values);
}

RINGTUNE_AVX512 static inline Vector zero() { return _mm512_setzero_ps(); }
RINGTUNE_AVX512 static inline Vector all(float value) { return _mm512_set1_ps(value); }
RINGTUNE_AVX512 static inline Vector plus(Vector a, Vector b) { return _mm512_add_ps(a, b); }
RINGTUNE_AVX512 static inline Vector minus(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
RINGTUNE_AVX512 static inline Vector times(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
// a b + c, rounded once.
RINGTUNE_AVX512 static inline Vector times_plus(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
// a - b; zero where there is no lane.
RINGTUNE_AVX512 static inline Vector minus(Lanes lanes, Vector a, Vector b) { return _mm512_maskz_sub_ps(lanes, a, b); }
RINGTUNE_AVX512 static inline float sum_of(Vector values) { return _mm512_reduce_add_ps(values); }
RINGTUNE_AVX512 static inline Vector size_of(Vector values) { return _mm512_abs_ps(values); }

// 1 - tail where x is not below zero.
RINGTUNE_AVX512 static inline Vector mirrored(Vector x, Vector tail) {
    const __mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GE_OQ);
    return _mm512_mask_sub_ps(tail, positive, _mm512_set1_ps(1.0f), tail);
}

// 1 / x for x from 1 on, with a relative error below 2e-7: the processor's estimate and one step of Newton's. Above
// 2^125, where the step would meet infinity, it is 0; NaN stays NaN.
RINGTUNE_AVX512 static inline Vector reciprocal(Vector x) {
    const __mmask16 small = _mm512_cmp_ps_mask(x, _mm512_set1_ps(0x1p125f), _CMP_NGT_UQ);
    const __m512 estimate = _mm512_rcp14_ps(x);
    const __m512 rest = _mm512_fnmadd_ps(x, estimate, _mm512_set1_ps(1.0f));
    return _mm512_maskz_fmadd_ps(small, estimate, rest, estimate);
}

} // namespace ringtune::fused
