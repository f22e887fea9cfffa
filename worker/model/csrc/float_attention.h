// What the forward and the backward pass of attention in fp32 share.
#pragma once

#include "float_kernels.h"

namespace ringtune::floats {

using flash::Shape;
using Rows = flash::Rows<const float>;

// Tokens of a block.
constexpr int64_t BLOCK = 64;

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
