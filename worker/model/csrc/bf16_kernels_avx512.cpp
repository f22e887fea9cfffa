// Compiled for AVX-512 with bf16 instructions, called only where the processor has them. Includes nothing but
// intrinsics: see bf16_kernels.h.
#include "bf16_kernels.h"

#include <immintrin.h>

namespace ringtune {
namespace avx512 {
namespace {

inline __m512bh broadcast_pair(const bf16_bits *pair) {
    int32_t bits;
    __builtin_memcpy(&bits, pair, sizeof bits);
    return (__m512bh)_mm512_set1_epi32(bits);
}

// Rows x Vectors*16 of the product in registers: Rows * Vectors + Vectors + 1 of 32.
template <int Rows, int Vectors>
inline void matmul_tile(int64_t depth, int64_t a_stride, int64_t c_stride, bool accumulate, const bf16_bits *a,
                        const bf16_bits *b, float *c) {
    __m512 sums[Rows][Vectors];
#pragma GCC unroll 16
    for (int row = 0; row < Rows; ++row) {
#pragma GCC unroll 8
        for (int vector = 0; vector < Vectors; ++vector) {
            sums[row][vector] =
                accumulate ? _mm512_loadu_ps(c + row * c_stride + vector * 16) : _mm512_setzero_ps();
        }
    }
    for (int64_t k = 0; k < depth; k += 2) {
        __m512bh columns[Vectors];
#pragma GCC unroll 8
        for (int vector = 0; vector < Vectors; ++vector) {
            columns[vector] = (__m512bh)_mm512_loadu_si512(b + k * Vectors * 16 + vector * 32);
        }
#pragma GCC unroll 16
        for (int row = 0; row < Rows; ++row) {
            const __m512bh pair = broadcast_pair(a + row * a_stride + k);
#pragma GCC unroll 8
            for (int vector = 0; vector < Vectors; ++vector) {
                sums[row][vector] = _mm512_dpbf16_ps(sums[row][vector], pair, columns[vector]);
            }
        }
    }
#pragma GCC unroll 16
    for (int row = 0; row < Rows; ++row) {
#pragma GCC unroll 8
        for (int vector = 0; vector < Vectors; ++vector) {
            _mm512_storeu_ps(c + row * c_stride + vector * 16, sums[row][vector]);
        }
    }
}

// The last rows, fewer than a full tile.
template <int Rows, int Vectors>
inline void matmul_tail(int64_t rows, int64_t depth, int64_t a_stride, int64_t c_stride, bool accumulate,
                        const bf16_bits *a, const bf16_bits *b, float *c) {
    if constexpr (Rows > 0) {
        if (rows == Rows) {
            matmul_tile<Rows, Vectors>(depth, a_stride, c_stride, accumulate, a, b, c);
        } else {
            matmul_tail<Rows - 1, Vectors>(rows, depth, a_stride, c_stride, accumulate, a, b, c);
        }
    }
}

template <int Rows, int Vectors>
void matmul_rows(int64_t rows, int64_t depth, int64_t a_stride, int64_t c_stride, bool accumulate,
                 const bf16_bits *a, const bf16_bits *b, float *c) {
    int64_t row = 0;
    for (; row + Rows <= rows; row += Rows) {
        matmul_tile<Rows, Vectors>(depth, a_stride, c_stride, accumulate, a + row * a_stride, b,
                                   c + row * c_stride);
    }
    matmul_tail<Rows - 1, Vectors>(rows - row, depth, a_stride, c_stride, accumulate, a + row * a_stride, b,
                                   c + row * c_stride);
}

// 2^x to about 1e-7 relative; 0 below 2^-126; NaN stays NaN.
inline __m512 exp2_of(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x); // the second operand is returned when it is NaN
    const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_sub_ps(x, whole);
    // Minimax polynomial of 2^f on [-0.5, 0.5].
    __m512 p = _mm512_set1_ps(1.5403530e-4f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.3333558e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6181291e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, whole);
}

// Two rows of 16 as pairs: first[0], second[0], first[1], second[1], ...
inline __m512i interleave(__m512 first, __m512 second) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(second, first); // low half: first
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                           6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, both);
}

inline void store_row(bf16_bits *out, __m512 values) {
    _mm256_storeu_si256((__m256i *)out, (__m256i)_mm512_cvtneps_pbh(values));
}

} // namespace

void matmul_panel(int64_t rows, int64_t columns, int64_t depth, int64_t a_stride, int64_t c_stride,
                  bool accumulate, const bf16_bits *a, const bf16_bits *b, float *c) {
    switch (columns / 16) {
    case 1:
        return matmul_rows<14, 1>(rows, depth, a_stride, c_stride, accumulate, a, b, c);
    case 2:
        return matmul_rows<12, 2>(rows, depth, a_stride, c_stride, accumulate, a, b, c);
    case 3:
        return matmul_rows<8, 3>(rows, depth, a_stride, c_stride, accumulate, a, b, c);
    default:
        return matmul_rows<6, 4>(rows, depth, a_stride, c_stride, accumulate, a, b, c);
    }
}

void softmax_step(int64_t keys, int64_t width, float scale, const float *scores, float *maximum, float *sum,
                  float *output, bf16_bits *probabilities) {
    const __m512 scales = _mm512_set1_ps(scale);
    for (int64_t column = 0; column < kQueryBlock; column += 16) {
        // 1. The new maximum.
        __m512 largest[4];
        for (auto &lane : largest) {
            lane = _mm512_set1_ps(-__builtin_inff());
        }
        int64_t key = 0;
        for (; key + 4 <= keys; key += 4) {
            for (int lane = 0; lane < 4; ++lane) {
                largest[lane] =
                    _mm512_max_ps(largest[lane], _mm512_loadu_ps(scores + (key + lane) * kQueryBlock + column));
            }
        }
        for (; key < keys; ++key) {
            largest[0] = _mm512_max_ps(largest[0], _mm512_loadu_ps(scores + key * kQueryBlock + column));
        }
        const __m512 block =
            _mm512_max_ps(_mm512_max_ps(largest[0], largest[1]), _mm512_max_ps(largest[2], largest[3]));
        const __m512 before = _mm512_loadu_ps(maximum + column);
        const __m512 after = _mm512_max_ps(before, _mm512_mul_ps(block, scales));
        const __m512 rescale = exp2_of(_mm512_sub_ps(before, after));
        _mm512_storeu_ps(maximum + column, after);
        // 2. Probabilities and their sum.
        __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
        for (key = 0; key + 2 <= keys; key += 2) {
            const float *row = scores + key * kQueryBlock + column;
            const __m512 first = exp2_of(_mm512_fmsub_ps(_mm512_loadu_ps(row), scales, after));
            const __m512 second = exp2_of(_mm512_fmsub_ps(_mm512_loadu_ps(row + kQueryBlock), scales, after));
            even = _mm512_add_ps(even, first);
            odd = _mm512_add_ps(odd, second);
            _mm512_storeu_si512(probabilities + (key / 2 * kQueryBlock + column) * 2, interleave(first, second));
        }
        if (key < keys) {
            const __m512 first =
                exp2_of(_mm512_fmsub_ps(_mm512_loadu_ps(scores + key * kQueryBlock + column), scales, after));
            even = _mm512_add_ps(even, first);
            _mm512_storeu_si512(probabilities + (key / 2 * kQueryBlock + column) * 2,
                                interleave(first, _mm512_setzero_ps()));
        }
        const __m512 total = _mm512_fmadd_ps(_mm512_loadu_ps(sum + column), rescale, _mm512_add_ps(even, odd));
        _mm512_storeu_ps(sum + column, total);
        // 3. What was summed up so far, to the new maximum.
        for (int64_t row = 0; row < width; ++row) {
            float *place = output + row * kQueryBlock + column;
            _mm512_storeu_ps(place, _mm512_mul_ps(_mm512_loadu_ps(place), rescale));
        }
    }
}

void softmax_backward(int64_t keys, float scale_log2, float scale, const float *scores,
                      const float *gradient, const float *logsum, const float *delta,
                      bf16_bits *probabilities, bf16_bits *score_gradient, bf16_bits *score_gradient_pairs) {
    const __m512 scales_log2 = _mm512_set1_ps(scale_log2), scales = _mm512_set1_ps(scale);
    for (int64_t column = 0; column < kQueryBlock; column += 16) {
        const __m512 logsums = _mm512_loadu_ps(logsum + column), deltas = _mm512_loadu_ps(delta + column);
        const auto one_row = [&](int64_t key) {
            const int64_t place = key * kQueryBlock + column;
            const __m512 p = exp2_of(_mm512_fmsub_ps(_mm512_loadu_ps(scores + place), scales_log2, logsums));
            const __m512 g = _mm512_mul_ps(
                _mm512_mul_ps(p, scales), _mm512_sub_ps(_mm512_loadu_ps(gradient + place), deltas));
            store_row(probabilities + place, p);
            store_row(score_gradient + place, g);
            return g;
        };
        int64_t key = 0;
        for (; key + 2 <= keys; key += 2) {
            const __m512 first = one_row(key), second = one_row(key + 1);
            _mm512_storeu_si512(score_gradient_pairs + (key / 2 * kQueryBlock + column) * 2,
                                interleave(first, second));
        }
        if (key < keys) {
            _mm512_storeu_si512(score_gradient_pairs + (key / 2 * kQueryBlock + column) * 2,
                                interleave(one_row(key), _mm512_setzero_ps()));
        }
    }
}

} // namespace avx512
} // namespace ringtune
