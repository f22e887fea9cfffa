#include "attention_tiles.h"

namespace ringtune::flash::tiles {

namespace {

// Of `count` values from `column` on, those of `lanes` that are before `width`.
inline uint32_t lanes_of(int64_t column, int64_t width, int64_t lanes) {
    const int64_t left = std::clamp<int64_t>(width - column, 0, lanes);
    return left == 32 ? 0xffffffffu : (1u << left) - 1;
}

RINGTUNE_AVX512 inline __m512i load_row(Rows<const Bf16> source, int64_t token, int64_t end, int64_t column,
                                        int64_t width) {
    const __mmask32 lanes = token < end ? lanes_of(column, width, 32) : 0;
    return lanes == 0 ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi16(lanes, source.row(token) + column);
}

// 16 values of each of two tokens, in turns.
RINGTUNE_AVX512 inline __m512i load_pair(Rows<const Bf16> source, int64_t token, int64_t end, int64_t column,
                                         int64_t width) {
    __m256i values[2];
    for (int64_t each = 0; each < 2; ++each) {
        const __mmask16 lanes = token + each < end ? __mmask16(lanes_of(column, width, SIDE)) : 0;
        values[each] = lanes == 0 ? _mm256_setzero_si256()
                                  : _mm256_maskz_loadu_epi16(lanes, source.row(token + each) + column);
    }
    return paired(_mm512_inserti64x4(_mm512_castsi256_si512(values[0]), values[1], 1));
}

} // namespace

RINGTUNE_AVX512 void pack_left(Rows<const Bf16> source, int64_t first, int64_t count, int64_t width, Bf16 *tiles) {
    for (int64_t column = 0; column < width; column += DEPTH, tiles += VALUES) {
        for (int64_t token = 0; token < SIDE; ++token) {
            _mm512_store_si512(tiles + token * DEPTH, load_row(source, first + token, first + count, column, width));
        }
    }
}

RINGTUNE_AVX512 void pack_right(Rows<const Bf16> source, int64_t first, int64_t count, int64_t width, Bf16 *tiles) {
    __m512i rows[SIDE];
    for (int64_t column = 0; column < width; column += DEPTH, tiles += VALUES) {
        for (int64_t token = 0; token < SIDE; ++token) {
            rows[token] = load_row(source, first + token, first + count, column, width);
        }
        transpose(rows);
        for (int64_t pair = 0; pair < SIDE; ++pair) {
            _mm512_store_si512(tiles + pair * DEPTH, rows[pair]);
        }
    }
}

RINGTUNE_AVX512 void pack_tokens(Rows<const Bf16> source, int64_t first, int64_t count, int64_t width, Bf16 *tiles) {
    for (int64_t column = 0; column < width; column += SIDE, tiles += VALUES) {
        for (int64_t pair = 0; pair < SIDE; ++pair) {
            _mm512_store_si512(tiles + pair * DEPTH, load_pair(source, first + pair * 2, first + count, column, width));
        }
    }
}

RINGTUNE_AVX512 void pack_tokens_left(Rows<const Bf16> source, int64_t first, int64_t count, int64_t width,
                                      Bf16 *tiles) {
    __m512i rows[SIDE];
    for (int64_t column = 0; column < width; column += SIDE, tiles += VALUES) {
        for (int64_t pair = 0; pair < SIDE; ++pair) {
            rows[pair] = load_pair(source, first + pair * 2, first + count, column, width);
        }
        transpose(rows);
        for (int64_t row = 0; row < SIDE; ++row) {
            _mm512_store_si512(tiles + row * DEPTH, rows[row]);
        }
    }
}

RINGTUNE_AVX512 void store_queries(const float *sums, const float *factors, Rows<Bf16> target, Block block,
                                   int64_t width) {
    for (int64_t tile = 0; tile < divide_up(width, SIDE) * 2; ++tile, sums += SUMS) {
        __m512i rows[SIDE];
        for (int64_t row = 0; row < SIDE; ++row) {
            rows[row] = _mm512_load_si512(sums + row * SIDE);
        }
        transpose(rows);
        for (int64_t column = 0; column < SIDE; ++column) {
            const int64_t query = query_of(tile % 2, column);
            if (query < block.count) {
                store_row(_mm512_castsi512_ps(rows[column]), factors[query], target.row(block.first + query),
                          tile / 2 * SIDE, width);
            }
        }
    }
}

} // namespace ringtune::flash::tiles
