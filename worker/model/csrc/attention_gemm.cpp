// The matrix product of attention_kernels.h by vdpbf16ps: tiles of 8 rows x 48 columns whose 24 sums stay in
// registers.

#include "attention_blocks.h"

namespace ringtune::flash {

namespace {

constexpr int TILE_ROWS = 8;
constexpr int TILE_VECTORS = 3;

// The strides and the depth that all tiles of one product share.
struct Product {
    int64_t pairs;
    const Bf16 *a;
    int64_t lda;
    const Bf16 *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    bool accumulate;
};

RINGTUNE_AVX512 inline __m512bh broadcast_pair(const Bf16 *pair) {
    int32_t bits;
    std::memcpy(&bits, pair, sizeof bits);
    return (__m512bh)_mm512_set1_epi32(bits);
}

template <int ROWS, int VECTORS> RINGTUNE_AVX512 inline void tile(const Product &product, int64_t row, int64_t column) {
    const Bf16 *a = product.a + row * product.lda;
    const Bf16 *b = product.b + column * 2;
    float *c = product.c + row * product.ldc + column;
    __m512 sum[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 3
        for (int v = 0; v < VECTORS; ++v) {
            sum[r][v] = product.accumulate ? _mm512_loadu_ps(c + r * product.ldc + v * LANES) : _mm512_setzero_ps();
        }
    }
    for (int64_t pair = 0; pair < product.pairs; ++pair) {
        __m512bh right[VECTORS];
#pragma GCC unroll 3
        for (int v = 0; v < VECTORS; ++v) {
            right[v] = (__m512bh)_mm512_loadu_si512(b + (pair * product.ldb + v * LANES) * 2);
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            const __m512bh left = broadcast_pair(a + r * product.lda + pair * 2);
#pragma GCC unroll 3
            for (int v = 0; v < VECTORS; ++v) {
                sum[r][v] = _mm512_dpbf16_ps(sum[r][v], left, right[v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 3
        for (int v = 0; v < VECTORS; ++v) {
            _mm512_storeu_ps(c + r * product.ldc + v * LANES, sum[r][v]);
        }
    }
}

// All rows of one strip of columns.
template <int VECTORS> RINGTUNE_AVX512 void strip(const Product &product, int64_t rows, int64_t column) {
    int64_t row = 0;
    for (; row + TILE_ROWS <= rows; row += TILE_ROWS) {
        tile<TILE_ROWS, VECTORS>(product, row, column);
    }
    switch (rows - row) {
    case 7: return tile<7, VECTORS>(product, row, column);
    case 6: return tile<6, VECTORS>(product, row, column);
    case 5: return tile<5, VECTORS>(product, row, column);
    case 4: return tile<4, VECTORS>(product, row, column);
    case 3: return tile<3, VECTORS>(product, row, column);
    case 2: return tile<2, VECTORS>(product, row, column);
    case 1: return tile<1, VECTORS>(product, row, column);
    default: return;
    }
}

} // namespace

void gemm_avx512(int64_t m, int64_t n, int64_t k, const Bf16 *a, int64_t lda, const Bf16 *b, int64_t ldb,
                 float *c, int64_t ldc, bool accumulate) {
    const Product product{k / 2, a, lda, b, ldb, c, ldc, accumulate};
    int64_t column = 0;
    // One vector alone would keep too few sums to hide how long each takes: of four, two and two.
    const int64_t wide_end = n % (TILE_VECTORS * LANES) == LANES ? n - 4 * LANES : n;
    for (; column + TILE_VECTORS * LANES <= wide_end; column += TILE_VECTORS * LANES) {
        strip<3>(product, m, column);
    }
    for (; n - column > 2 * LANES; column += 2 * LANES) {
        strip<2>(product, m, column);
    }
    if (n - column == 2 * LANES) {
        strip<2>(product, m, column);
    } else if (n - column == LANES) {
        strip<1>(product, m, column);
    }
}

} // namespace ringtune::flash
