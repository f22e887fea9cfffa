// Eight fp32 numbers at once, for processors with AVX2, in the words of lanes_sixteen.h.
#pragma once

#include "attention_blocks.h"

// Set for each function, as RINGTUNE_WIDE is.
#define RINGTUNE_AVX2 __attribute__((target("avx2,fma")))

namespace ringtune::eight {

using Vector = __m256;

constexpr int64_t LANES = 8;

// Some of a vector's lanes, the first ones.
struct Lanes {
    int64_t count;
    __m256i mask;
};

RINGTUNE_AVX2 static inline Lanes lanes_before(int64_t column, int64_t end) {
    const int64_t count = std::min(end - column, LANES);
    const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return {count, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), numbers)};
}

RINGTUNE_AVX2 static inline Vector load(const float *place) { return _mm256_loadu_ps(place); }
RINGTUNE_AVX2 static inline Vector load(Lanes lanes, const float *place) {
    return lanes.count == LANES ? load(place) : _mm256_maskload_ps(place, lanes.mask);
}

RINGTUNE_AVX2 static inline void store(float *place, Vector values) { _mm256_storeu_ps(place, values); }
RINGTUNE_AVX2 static inline void store(Lanes lanes, float *place, Vector values) {
    if (lanes.count == LANES) {
        store(place, values);
    } else {
        _mm256_maskstore_ps(place, lanes.mask, values);
    }
}

RINGTUNE_AVX2 static inline Vector zero() { return _mm256_setzero_ps(); }
RINGTUNE_AVX2 static inline Vector all(float value) { return _mm256_set1_ps(value); }
RINGTUNE_AVX2 static inline Vector plus(Vector a, Vector b) { return _mm256_add_ps(a, b); }
RINGTUNE_AVX2 static inline Vector minus(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
RINGTUNE_AVX2 static inline Vector times(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
RINGTUNE_AVX2 static inline Vector times_plus(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
RINGTUNE_AVX2 static inline Vector times_minus(Vector a, Vector b, Vector c) { return _mm256_fmsub_ps(a, b, c); }
RINGTUNE_AVX2 static inline Vector minus_times(Vector a, Vector b, Vector c) { return _mm256_fnmadd_ps(a, b, c); }
RINGTUNE_AVX2 static inline Vector minus(Lanes lanes, Vector a, Vector b) {
    return _mm256_and_ps(_mm256_sub_ps(a, b), _mm256_castsi256_ps(lanes.mask));
}
RINGTUNE_AVX2 static inline Vector greater(Vector a, Vector b) { return _mm256_max_ps(a, b); }
RINGTUNE_AVX2 static inline bool any_differs(Vector a, Vector b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NEQ_UQ)) != 0;
}

RINGTUNE_AVX2 static inline float sum_of(Vector values) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

RINGTUNE_AVX2 static inline Vector size_of(Vector values) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), values); }

RINGTUNE_AVX2 static inline Vector mirrored(Vector x, Vector tail) {
    const __m256 positive = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GE_OQ);
    return _mm256_blendv_ps(tail, _mm256_sub_ps(_mm256_set1_ps(1.0f), tail), positive);
}

RINGTUNE_AVX2 static inline Vector reciprocal(Vector x) { return _mm256_div_ps(_mm256_set1_ps(1.0f), x); }

// 2^x for x up to 127, with the error of flash::EXP2; 0 from -127 down, NaN for NaN.
RINGTUNE_AVX2 static inline Vector small_exp2_of(Vector x) {
    x = _mm256_max_ps(_mm256_set1_ps(-127.0f), x);
    const __m256 whole = _mm256_floor_ps(x), fraction = _mm256_sub_ps(x, whole);
    __m256 power = _mm256_set1_ps(flash::EXP2[0]);
#pragma GCC unroll 5
    for (int term = 1; term <= 5; ++term) {
        power = _mm256_fmadd_ps(power, fraction, _mm256_set1_ps(flash::EXP2[term]));
    }
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
    return _mm256_mul_ps(power, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

// From 2^127 on no more than that.
RINGTUNE_AVX2 static inline Vector exp2_of(Vector x) { return small_exp2_of(_mm256_min_ps(_mm256_set1_ps(127.0f), x)); }

RINGTUNE_AVX2 static inline void add_to(double *sums, Vector more) {
    _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), _mm256_cvtps_pd(_mm256_castps256_ps128(more))));
    _mm256_storeu_pd(sums + 4, _mm256_add_pd(_mm256_loadu_pd(sums + 4), _mm256_cvtps_pd(_mm256_extractf128_ps(more, 1))));
}

} // namespace ringtune::eight
