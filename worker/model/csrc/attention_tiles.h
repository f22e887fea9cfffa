// Attention for AMX's tiles: what the forward and the backward pass share. Operands lie tile by tile, 1 KB each, so that
// whatever a product reads next lies next in memory; blocks of scores are small enough to stay in a core's nearest cache.
#pragma once

#include "attention_blocks.h"

#include <atomic>

namespace ringtune::flash::tiles {

constexpr int64_t SIDE = 16;    // rows of any tile, and columns of sums
constexpr int64_t DEPTH = 32;   // what one tile of products adds up over
constexpr int64_t BLOCK = 32;   // tokens that scores are made for at once, of both sides
constexpr int64_t VALUES = 512; // bf16 of a tile
constexpr int64_t SUMS = 256;   // fp32 of a tile
constexpr int64_t LINE = 64;    // bytes of a tile's row

// Vectors and tiles in one function.
#define RINGTUNE_TILES                                                                                                 \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,amx-tile,amx-bf16")))

// The forms of 16 or 32 tokens, [width] each, as tiles. What lies past the end of tokens or width is zero.

// Left operands whose products add up over the width: [depth tiles][16 tokens][32 of the width].
void pack_left(Rows<const Bf16> source, int64_t first, int64_t count, int64_t width, Bf16 *tiles);
// Right operands whose products add up over the width: [depth tiles][16 pairs of the width][16 tokens][2].
void pack_right(Rows<const Bf16> source, int64_t first, int64_t count, int64_t width, Bf16 *tiles);
// Right operands whose products add up over 32 tokens: [width tiles][16 pairs of tokens][16 of the width][2].
void pack_tokens(Rows<const Bf16> source, int64_t first, int64_t count, int64_t width, Bf16 *tiles);
// Left operands whose products add up over 32 tokens: [width tiles][16 of the width][32 tokens].
void pack_tokens_left(Rows<const Bf16> source, int64_t first, int64_t count, int64_t width, Bf16 *tiles);

// Of 32 keys' scores, [2][2] tiles, those from `count` on become those of nothing.
inline void hide_tokens_from(int64_t count, float *scores) {
    for (int64_t token = std::max<int64_t>(count, 0); token < BLOCK; ++token) {
        float *row = scores + token / SIDE * 2 * SUMS + token % SIDE * SIDE;
        std::fill_n(row, SIDE, LOWEST_SCORE);
        std::fill_n(row + SUMS, SIDE, LOWEST_SCORE);
    }
}

// Two rows of 32 queries become the rows of two right operands side by side that add up over keys. The rows are interleaved
// within each 128 bits, which puts queries in another order: query_of.
RINGTUNE_AVX512 static inline void store_pairs(__m512i first, __m512i second, Bf16 *row) {
    _mm512_store_si512(row, _mm512_unpacklo_epi16(first, second));
    _mm512_store_si512(row + VALUES, _mm512_unpackhi_epi16(first, second));
}

// The query in a column of such a tile; `half`: of the two side by side.
inline int64_t query_of(int64_t half, int64_t column) { return column / 4 * 8 + half * 4 + column % 4; }

// 16 values of a row, from `column` on, times `factor`.
RINGTUNE_AVX512 static inline void store_row(__m512 values, float factor, Bf16 *row, int64_t column, int64_t width) {
    const __mmask16 lanes = width - column >= SIDE ? 0xffff : (1u << (width - column)) - 1;
    const __m512 scaled = _mm512_mul_ps(values, _mm512_set1_ps(factor));
    _mm256_mask_storeu_epi16(row + column, lanes, (__m256i)_mm512_cvtneps_pbh(scaled));
}

// Sums of 32 queries, [width tiles][2] whose columns are as query_of says, as rows, each times its query's factor.
void store_queries(const float *sums, const float *factors, Rows<Bf16> target, Block block, int64_t width);

// Rows become columns: 16 x 16 words of 32 bits.
RINGTUNE_AVX512 static inline void transpose(__m512i (&rows)[SIDE]) {
    __m512i pairs[SIDE], fours[SIDE];
    // Within each quarter of a vector, of 2 and of 4 rows.
    for (int64_t at = 0; at < SIDE; at += 2) {
        pairs[at] = _mm512_unpacklo_epi32(rows[at], rows[at + 1]);
        pairs[at + 1] = _mm512_unpackhi_epi32(rows[at], rows[at + 1]);
    }
    for (int64_t at = 0; at < SIDE; at += 4) {
        fours[at] = _mm512_unpacklo_epi64(pairs[at], pairs[at + 2]);
        fours[at + 1] = _mm512_unpackhi_epi64(pairs[at], pairs[at + 2]);
        fours[at + 2] = _mm512_unpacklo_epi64(pairs[at + 1], pairs[at + 3]);
        fours[at + 3] = _mm512_unpackhi_epi64(pairs[at + 1], pairs[at + 3]);
    }
    // Then the quarters.
    for (int64_t at = 0; at < 4; ++at) {
        const __m512i even = _mm512_shuffle_i32x4(fours[at], fours[at + 4], 0x88);
        const __m512i odd = _mm512_shuffle_i32x4(fours[at], fours[at + 4], 0xdd);
        const __m512i even_below = _mm512_shuffle_i32x4(fours[at + 8], fours[at + 12], 0x88);
        const __m512i odd_below = _mm512_shuffle_i32x4(fours[at + 8], fours[at + 12], 0xdd);
        rows[at] = _mm512_shuffle_i32x4(even, even_below, 0x88);
        rows[at + 8] = _mm512_shuffle_i32x4(even, even_below, 0xdd);
        rows[at + 4] = _mm512_shuffle_i32x4(odd, odd_below, 0x88);
        rows[at + 12] = _mm512_shuffle_i32x4(odd, odd_below, 0xdd);
    }
}

// 2^x with a relative error below 3e-6, a six-hundredth of what rounding to bf16 costs: 0 far below, infinity far above,
// NaN for NaN. The polynomial is the best of degree 4 for 2^f, f in [0, 1), that is exact at 0.
constexpr float SHORT_EXP2[] = {0.013426684f, 0.052242473f, 0.2412802f, 0.69304484f, 1.0f};

RINGTUNE_AVX512 static inline __m512 short_exp2_of(__m512 x) {
    const __m512 fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 power = _mm512_set1_ps(SHORT_EXP2[0]);
#pragma GCC unroll 4
    for (int64_t term = 1; term < 5; ++term) {
        power = _mm512_fmadd_ps(power, fraction, _mm512_set1_ps(SHORT_EXP2[term]));
    }
    return _mm512_scalef_ps(power, x);
}

// Vectors that are worked on side by side where little else is at hand: the operations of one wait for each other, and a
// processor looks ahead only so far.
constexpr int64_t TOGETHER = 8;
#define RINGTUNE_TOGETHER _Pragma("GCC unroll 8") for (int64_t each = 0; each < TOGETHER; ++each)

RINGTUNE_AVX512 static inline void short_exp2_of(__m512 (&x)[TOGETHER]) {
    __m512 fraction[TOGETHER], power[TOGETHER];
    RINGTUNE_TOGETHER {
        fraction[each] = _mm512_reduce_ps(x[each], _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
        power[each] = _mm512_set1_ps(SHORT_EXP2[0]);
    }
#pragma GCC unroll 4
    for (int64_t term = 1; term < 5; ++term) {
        RINGTUNE_TOGETHER {
            power[each] = _mm512_fmadd_ps(power[each], fraction[each], _mm512_set1_ps(SHORT_EXP2[term]));
        }
    }
    RINGTUNE_TOGETHER {
        x[each] = _mm512_scalef_ps(power[each], x[each]);
    }
}

// sums[2][2] = left[2] right[2]T: four tiles of 32 x 32 scores, row by row. Both operands' tiles lie [2][depth].
RINGTUNE_TILES static inline void multiply_scores(const Bf16 *left, const Bf16 *right, int64_t depth, float *sums) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t at = 0; at < depth * VALUES; at += VALUES) {
        _tile_loadd(6, right + at, LINE);
        _tile_loadd(4, left + at, LINE);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, right + depth * VALUES + at, LINE);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, left + depth * VALUES + at, LINE);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, LINE);
    _tile_stored(1, sums + SUMS, LINE);
    _tile_stored(2, sums + 2 * SUMS, LINE);
    _tile_stored(3, sums + 3 * SUMS, LINE);
}

// Before tiles are loaded that the same function made: the compiler does not know that loading a tile reads what was stored.
inline void stores_before_tiles() { std::atomic_signal_fence(std::memory_order_seq_cst); }

// Products that are added to two rows of sums, WIDE tiles each, over `steps` tiles of depth. All distances count elements.
struct Added {
    const Bf16 *left;     // the tile of the first row, of the first step
    int64_t left_row;     // elements from its row to the second
    int64_t left_step;    // from step to step
    const Bf16 *right;    // WIDE tiles side by side
    int64_t right_step;
    int64_t steps;
    float *sums;          // WIDE tiles side by side
    int64_t sums_row;
    bool begins;          // with nothing
};

template <int WIDE> RINGTUNE_TILES static inline void add_products(const Added &added) {
    float *upper = added.sums, *lower = added.sums + added.sums_row;
    stores_before_tiles();
    if (added.begins) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        _tile_zero(4);
        _tile_zero(5);
    } else {
        _tile_loadd(0, upper, LINE);
        _tile_loadd(3, lower, LINE);
        if constexpr (WIDE > 1) {
            _tile_loadd(1, upper + SUMS, LINE);
            _tile_loadd(4, lower + SUMS, LINE);
        }
        if constexpr (WIDE > 2) {
            _tile_loadd(2, upper + 2 * SUMS, LINE);
            _tile_loadd(5, lower + 2 * SUMS, LINE);
        }
    }
    const Bf16 *left = added.left, *right = added.right;
    for (int64_t step = 0; step < added.steps; ++step) {
        _tile_loadd(6, left, LINE);
        _tile_loadd(7, right, LINE);
        _tile_dpbf16ps(0, 6, 7);
        if constexpr (WIDE > 1) {
            _tile_loadd(7, right + VALUES, LINE);
            _tile_dpbf16ps(1, 6, 7);
        }
        if constexpr (WIDE > 2) {
            _tile_loadd(7, right + 2 * VALUES, LINE);
            _tile_dpbf16ps(2, 6, 7);
        }
        // Back again, so that the last is used twice.
        _tile_loadd(6, left + added.left_row, LINE);
        if constexpr (WIDE > 2) {
            _tile_dpbf16ps(5, 6, 7);
            _tile_loadd(7, right + VALUES, LINE);
        }
        if constexpr (WIDE > 1) {
            _tile_dpbf16ps(4, 6, 7);
            _tile_loadd(7, right, LINE);
        }
        _tile_dpbf16ps(3, 6, 7);
        left += added.left_step;
        right += added.right_step;
    }
    _tile_stored(0, upper, LINE);
    _tile_stored(3, lower, LINE);
    if constexpr (WIDE > 1) {
        _tile_stored(1, upper + SUMS, LINE);
        _tile_stored(4, lower + SUMS, LINE);
    }
    if constexpr (WIDE > 2) {
        _tile_stored(2, upper + 2 * SUMS, LINE);
        _tile_stored(5, lower + 2 * SUMS, LINE);
    }
}

// The same for any number of tiles side by side.
RINGTUNE_TILES static inline void add_wide_products(Added added, int64_t wide) {
    for (; wide > 2; wide -= 3) {
        add_products<3>(added);
        added.right += 3 * VALUES;
        added.sums += 3 * SUMS;
    }
    if (wide == 2) {
        add_products<2>(added);
    } else if (wide == 1) {
        add_products<1>(added);
    }
}

// The same where sums lie [rows of the left operand][2]: TALL rows of tiles, two of them side by side, over `steps`.
template <int TALL> RINGTUNE_TILES static inline void add_tall_products(const Added &added) {
    float *rows[3] = {added.sums, added.sums + added.sums_row, added.sums + 2 * added.sums_row};
    stores_before_tiles();
    if (added.begins) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        _tile_zero(4);
        _tile_zero(5);
    } else {
        _tile_loadd(0, rows[0], LINE);
        _tile_loadd(3, rows[0] + SUMS, LINE);
        if constexpr (TALL > 1) {
            _tile_loadd(1, rows[1], LINE);
            _tile_loadd(4, rows[1] + SUMS, LINE);
        }
        if constexpr (TALL > 2) {
            _tile_loadd(2, rows[2], LINE);
            _tile_loadd(5, rows[2] + SUMS, LINE);
        }
    }
    const Bf16 *left = added.left, *right = added.right;
    for (int64_t step = 0; step < added.steps; ++step) {
        _tile_loadd(7, right, LINE);
        _tile_loadd(6, left, LINE);
        _tile_dpbf16ps(0, 6, 7);
        if constexpr (TALL > 1) {
            _tile_loadd(6, left + added.left_row, LINE);
            _tile_dpbf16ps(1, 6, 7);
        }
        if constexpr (TALL > 2) {
            _tile_loadd(6, left + 2 * added.left_row, LINE);
            _tile_dpbf16ps(2, 6, 7);
        }
        _tile_loadd(7, right + VALUES, LINE);
        if constexpr (TALL > 2) {
            _tile_dpbf16ps(5, 6, 7);
            _tile_loadd(6, left + added.left_row, LINE);
        }
        if constexpr (TALL > 1) {
            _tile_dpbf16ps(4, 6, 7);
            _tile_loadd(6, left, LINE);
        }
        _tile_dpbf16ps(3, 6, 7);
        left += added.left_step;
        right += added.right_step;
    }
    _tile_stored(0, rows[0], LINE);
    _tile_stored(3, rows[0] + SUMS, LINE);
    if constexpr (TALL > 1) {
        _tile_stored(1, rows[1], LINE);
        _tile_stored(4, rows[1] + SUMS, LINE);
    }
    if constexpr (TALL > 2) {
        _tile_stored(2, rows[2], LINE);
        _tile_stored(5, rows[2] + SUMS, LINE);
    }
}

// And for any number of rows.
RINGTUNE_TILES static inline void add_all_tall_products(Added added, int64_t tall) {
    for (; tall > 2; tall -= 3) {
        add_tall_products<3>(added);
        added.left += 3 * added.left_row;
        added.sums += 3 * added.sums_row;
    }
    if (tall == 2) {
        add_tall_products<2>(added);
    } else if (tall == 1) {
        add_tall_products<1>(added);
    }
}

// As flash::forward and flash::backward, where nothing is hidden or dropped.
void forward(const Shape &shape, const Backend &backend, Input query, Input key, Input value, Output output,
             float *log_sum_exp);
void backward(const Shape &shape, const Backend &backend, Input query, Input key, Input value, Input output,
              const float *log_sum_exp, Input grad_output, Gradients gradients);

} // namespace ringtune::flash::tiles
