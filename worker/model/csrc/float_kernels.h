// What the kernels of float_layers.h share: eight numbers at once, and a product of few rows and 16 columns.
#pragma once

#include "attention_blocks.h"
#include "float_layers.h"

// Set for each function, as RINGTUNE_AVX512 is.
#define RINGTUNE_AVX2 __attribute__((target("avx2,fma")))

namespace ringtune::floats {

using flash::divide_up;
using flash::Multiplying;
using flash::round_up;

constexpr int64_t EIGHT = 8;
// Columns whose products are added up at once, as two vectors.
constexpr int64_t STRIP = WIDTH;
// Rows, likewise: 12 sums, two vectors of the right operand and one number of the left in 16 registers.
constexpr int64_t ROWS = 6;

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

// 2^x for x up to 127, with the error of flash::EXP2; 0 from -127 down, NaN for NaN.
RINGTUNE_AVX2 static inline __m256 exp2_of(__m256 x) {
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

// sums[COUNT][16] (+)= left[COUNT][depth] right[depth][16]. With an ending, if there is one. What was added up before is added
// last: a few short sums err less than one long one.
template <int COUNT>
RINGTUNE_AVX2 inline void multiply_tile(Matrix<const float> left, Matrix<const float> right, int64_t depth, bool first,
                                        Matrix<float> sums, const Ending *ending) {
    __m256 all[COUNT][2];
#pragma GCC unroll 6
    for (int row = 0; row < COUNT; ++row) {
        all[row][0] = all[row][1] = _mm256_setzero_ps();
    }
    const float *from[COUNT];
#pragma GCC unroll 6
    for (int row = 0; row < COUNT; ++row) {
        from[row] = left.row(row);
    }
#pragma GCC unroll 2
    for (int64_t at = 0; at < depth; ++at) {
        const __m256 by = _mm256_load_ps(right.row(at)), by_more = _mm256_load_ps(right.row(at) + EIGHT);
#pragma GCC unroll 6
        for (int row = 0; row < COUNT; ++row) {
            const __m256 value = _mm256_broadcast_ss(from[row] + at);
            all[row][0] = _mm256_fmadd_ps(value, by, all[row][0]);
            all[row][1] = _mm256_fmadd_ps(value, by_more, all[row][1]);
        }
    }
#pragma GCC unroll 6
    for (int row = 0; row < COUNT; ++row) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            if (!first) {
                all[row][half] = _mm256_add_ps(all[row][half], _mm256_loadu_ps(sums.row(row) + half * EIGHT));
            }
            if (ending != nullptr && ending->bias != nullptr) {
                all[row][half] = _mm256_add_ps(all[row][half], _mm256_loadu_ps(ending->bias + half * EIGHT));
            }
            if (ending != nullptr && ending->residual.values != nullptr) {
                const float *more = ending->residual.row(row) + half * EIGHT;
                all[row][half] = _mm256_add_ps(all[row][half], _mm256_loadu_ps(more));
            }
            _mm256_storeu_ps(sums.row(row) + half * EIGHT, all[row][half]);
        }
    }
}

// The same for any number of rows.
RINGTUNE_AVX2 static inline void multiply_strip(int64_t rows, Matrix<const float> left, Matrix<const float> right,
                                                int64_t depth, bool first, Matrix<float> sums, const Ending *ending) {
    int64_t row = 0;
    Ending rest = ending == nullptr ? Ending{} : *ending;
    const Ending *end = ending == nullptr ? nullptr : &rest;
    const auto advance = [&](int64_t count) {
        row += count;
        left.values += count * left.stride;
        sums.values += count * sums.stride;
        rest.residual.values += rest.residual.values == nullptr ? 0 : count * rest.residual.stride;
    };
    while (row + ROWS <= rows) {
        multiply_tile<ROWS>(left, right, depth, first, sums, end);
        advance(ROWS);
    }
    switch (rows - row) {
    case 5: return multiply_tile<5>(left, right, depth, first, sums, end);
    case 4: return multiply_tile<4>(left, right, depth, first, sums, end);
    case 3: return multiply_tile<3>(left, right, depth, first, sums, end);
    case 2: return multiply_tile<2>(left, right, depth, first, sums, end);
    case 1: return multiply_tile<1>(left, right, depth, first, sums, end);
    default: return;
    }
}

} // namespace ringtune::floats
