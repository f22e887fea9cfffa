// Vectors of sixteen values that lie in memory as bf16.
#pragma once

#include "attention_blocks.h"

namespace ringtune::fused {

using Bf16 = uint16_t;
using flash::exp2_of;
using flash::LANES;
using flash::LOG2_E;

// The lanes of a vector that starts at `column`: all, or those before `end`.
RINGTUNE_AVX512 static inline __mmask16 lanes_before(int64_t column, int64_t end) {
    return end - column >= LANES ? __mmask16(0xFFFF) : __mmask16((1u << (end - column)) - 1);
}

RINGTUNE_AVX512 static inline __m512 load(__mmask16 lanes, const Bf16 *place) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, place));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

RINGTUNE_AVX512 static inline void store(__mmask16 lanes, Bf16 *place, __m512 values) {
    _mm256_mask_storeu_epi16(place, lanes, (__m256i)_mm512_cvtneps_pbh(values));
}

// 1 / x for x from 1 on, with a relative error below 2e-7: the processor's estimate and one step of Newton's. Above
// 2^125, where the step would meet infinity, it is 0; NaN stays NaN.
RINGTUNE_AVX512 static inline __m512 reciprocal(__m512 x) {
    const __mmask16 small = _mm512_cmp_ps_mask(x, _mm512_set1_ps(0x1p125f), _CMP_NGT_UQ);
    const __m512 estimate = _mm512_rcp14_ps(x);
    const __m512 rest = _mm512_fnmadd_ps(x, estimate, _mm512_set1_ps(1.0f));
    return _mm512_maskz_fmadd_ps(small, estimate, rest, estimate);
}

RINGTUNE_AVX512 static inline __m512 sigmoid(__m512 x) {
    return reciprocal(_mm512_add_ps(_mm512_set1_ps(1.0f), exp2_of(_mm512_mul_ps(x, _mm512_set1_ps(-LOG2_E)))));
}

} // namespace ringtune::fused
