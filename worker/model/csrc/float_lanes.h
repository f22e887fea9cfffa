// Eight values at once in fp32, for processors with AVX2: what fused_body.h and layer_norm_body.h are written in, as lanes.h
// has it for bf16.
#pragma once

#include "float_kernels.h"
#include "fused_kernels.h"

#define RINGTUNE_TARGET RINGTUNE_AVX2

namespace ringtune::fused {

using Element = float;
using Vector = __m256;
using flash::LOG2_E;

constexpr int64_t LANES = floats::EIGHT;

// Some of a vector's lanes, the first ones.
struct Lanes {
    int64_t count;
    __m256i mask;
};

// The lanes of a vector that starts at `column`: all, or those before `end`.
RINGTUNE_AVX2 static inline Lanes lanes_before(int64_t column, int64_t end) {
    const int64_t count = std::min(end - column, LANES);
    const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return {count, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), numbers)};
}

// Zero where there is no lane.
RINGTUNE_AVX2 static inline Vector load(Lanes lanes, const float *place) {
    return lanes.count == LANES ? _mm256_loadu_ps(place) : _mm256_maskload_ps(place, lanes.mask);
}

RINGTUNE_AVX2 static inline void store(Lanes lanes, float *place, Vector values) {
    if (lanes.count == LANES) {
        _mm256_storeu_ps(place, values);
    } else {
        _mm256_maskstore_ps(place, lanes.mask, values);
    }
}

RINGTUNE_AVX2 static inline Vector zero() { return _mm256_setzero_ps(); }
RINGTUNE_AVX2 static inline Vector all(float value) { return _mm256_set1_ps(value); }
RINGTUNE_AVX2 static inline Vector plus(Vector a, Vector b) { return _mm256_add_ps(a, b); }
RINGTUNE_AVX2 static inline Vector minus(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
RINGTUNE_AVX2 static inline Vector times(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
// a b + c, rounded once.
RINGTUNE_AVX2 static inline Vector times_plus(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
// a - b; zero where there is no lane.
RINGTUNE_AVX2 static inline Vector minus(Lanes lanes, Vector a, Vector b) {
    return _mm256_and_ps(_mm256_sub_ps(a, b), _mm256_castsi256_ps(lanes.mask));
}

RINGTUNE_AVX2 static inline float sum_of(Vector values) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

RINGTUNE_AVX2 static inline Vector size_of(Vector values) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), values); }

// 1 - tail where x is not below zero.
RINGTUNE_AVX2 static inline Vector mirrored(Vector x, Vector tail) {
    const __m256 positive = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GE_OQ);
    return _mm256_blendv_ps(tail, _mm256_sub_ps(_mm256_set1_ps(1.0f), tail), positive);
}

RINGTUNE_AVX2 static inline Vector reciprocal(Vector x) { return _mm256_div_ps(_mm256_set1_ps(1.0f), x); }

// 2^x, from 2^127 on no more than that; NaN for NaN.
RINGTUNE_AVX2 static inline Vector exp2_of(Vector x) { return floats::exp2_of(_mm256_min_ps(_mm256_set1_ps(127.0f), x)); }

} // namespace ringtune::fused
