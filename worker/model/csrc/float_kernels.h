// What the kernels of float_layers.h share, whatever their width: operands, and how they are put in another order.
#pragma once

#include "float_layers.h"
#include "lanes_eight.h"

namespace ringtune::floats {

using flash::divide_up;
using flash::Multiplying;
using flash::round_up;

// What is only moved is moved by so many, with AVX-512 too.
constexpr int64_t EIGHT = eight::LANES;

// Eight rows of eight numbers: each column becomes a row.
RINGTUNE_AVX2 static inline void transpose(__m256 (&rows)[EIGHT]) {
    __m256 pairs[EIGHT], fours[EIGHT];
#pragma GCC unroll 4
    for (int i = 0; i < EIGHT; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < EIGHT; i += 4) {
        fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
        fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        rows[i] = _mm256_permute2f128_ps(fours[i], fours[4 + i], 0x20);
        rows[4 + i] = _mm256_permute2f128_ps(fours[i], fours[4 + i], 0x31);
    }
}

// One operand: where it begins, and how far apart its rows lie.
template <typename Element> struct Matrix {
    Element *values;
    int64_t stride;

    Element *row(int64_t row) const { return values + row * stride; }
};

// What becomes of sums when the last product is added: `bias` and `residual` are those of the first row and column.
struct Ending {
    const float *bias;
    Matrix<const float> residual;
};

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

} // namespace ringtune::floats
