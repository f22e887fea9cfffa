// What the forward and the backward pass of attention in fp32 share.
#pragma once

#include "float_kernels.h"

namespace ringtune::floats {

using flash::Shape;
using Rows = flash::Rows<const float>;

// Tokens of a block.
constexpr int64_t BLOCK = 64;

// 2^x for x up to 127: with a relative error below 2e-7, 0 from -127 down, NaN for NaN. The polynomial is flash::exp2_of's.
RINGTUNE_AVX2 static inline __m256 exp2_of(__m256 x) {
    x = _mm256_max_ps(_mm256_set1_ps(-127.0f), x);
    const __m256 whole = _mm256_floor_ps(x), fraction = _mm256_sub_ps(x, whole);
    __m256 power = _mm256_set1_ps(0.001867130137036807f);
    power = _mm256_fmadd_ps(power, fraction, _mm256_set1_ps(0.009017030135627324f));
    power = _mm256_fmadd_ps(power, fraction, _mm256_set1_ps(0.055799913287692515f));
    power = _mm256_fmadd_ps(power, fraction, _mm256_set1_ps(0.24016445008077486f));
    power = _mm256_fmadd_ps(power, fraction, _mm256_set1_ps(0.6931513118146004f));
    power = _mm256_fmadd_ps(power, fraction, _mm256_set1_ps(1.0f));
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
    return _mm256_mul_ps(power, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

// to[column][row] = factor from[row][column].
RINGTUNE_AVX2 static inline void turn(Matrix<const float> from, int64_t rows, int64_t columns, float factor, Matrix<float> to) {
    const __m256 factors = _mm256_set1_ps(factor);
    for (int64_t row = 0; row < rows; row += EIGHT) {
        for (int64_t column = 0; column < columns; column += EIGHT) {
            if (row + EIGHT <= rows && column + EIGHT <= columns) {
                __m256 all[EIGHT];
#pragma GCC unroll 8
                for (int64_t at = 0; at < EIGHT; ++at) {
                    all[at] = _mm256_mul_ps(factors, _mm256_loadu_ps(from.row(row + at) + column));
                }
                transpose(all);
#pragma GCC unroll 8
                for (int64_t at = 0; at < EIGHT; ++at) {
                    _mm256_storeu_ps(to.row(column + at) + row, all[at]);
                }
                continue;
            }
            for (int64_t at = column; at < std::min(column + EIGHT, columns); ++at) {
                for (int64_t of = row; of < std::min(row + EIGHT, rows); ++of) {
                    to.row(at)[of] = factor * from.row(of)[at];
                }
            }
        }
    }
}

// Tokens as strips of a right operand, 16 beside each other: [strips][width][16], with zeros behind the last.
RINGTUNE_AVX2 static inline void turn_into_strips(Matrix<const float> tokens, int64_t count, int64_t width, float *strips) {
    for (int64_t token = 0; token < count; token += STRIP) {
        float *strip = strips + token * width;
        if (count - token < STRIP) {
            std::fill_n(strip, width * STRIP, 0.0f);
        }
        turn({tokens.row(token), tokens.stride}, std::min(STRIP, count - token), width, 1.0f, {strip, STRIP});
    }
}

inline Matrix<const float> matrix_of(const Rows &rows, int64_t token) { return {rows.row(token), rows.stride}; }

} // namespace ringtune::floats
