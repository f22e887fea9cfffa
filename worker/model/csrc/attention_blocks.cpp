#include "attention_blocks.h"

namespace ringtune::flash {

void pack_rows(Rows<const Bf16> source, Block block, Width width, Bf16 *packed) {
    for (int64_t token = 0; token < block.block; ++token) {
        Bf16 *target = packed + token * width.padded;
        const int64_t filled = token < block.count ? width.filled : 0;
        if (filled > 0) {
            std::memcpy(target, source.row(block.first + token), filled * sizeof(Bf16));
        }
        std::fill(target + filled, target + width.padded, Bf16{0});
    }
}

namespace {

// The first `count` of 32, all of them or none.
RINGTUNE_AVX512 inline __mmask32 first_of(int64_t count) {
    return count >= 2 * LANES ? ~__mmask32{0} : count <= 0 ? 0 : (__mmask32{1} << count) - 1;
}

// 32 columns of a token, zeros where there are none.
RINGTUNE_AVX512 inline __m512i columns_of(Rows<const Bf16> source, Block block, Width width, int64_t token,
                                          int64_t column) {
    if (token >= block.count) {
        return _mm512_setzero_si512();
    }
    return _mm512_maskz_loadu_epi16(first_of(width.filled - column), source.row(block.first + token) + column);
}

// 16 columns of a token and of the one behind it, in turns.
RINGTUNE_AVX512 inline __m512i pairs_of(Rows<const Bf16> source, Block block, Width width, int64_t token,
                                        int64_t column) {
    const int64_t some = std::min(column + LANES, width.filled);
    const __m512i first = columns_of(source, block, {some, some}, token, column);
    const __m512i second = columns_of(source, block, {some, some}, token + 1, column);
    return paired(_mm512_inserti64x4(first, _mm512_castsi512_si256(second), 1));
}

} // namespace

RINGTUNE_AVX512 void pack_columns(Rows<const Bf16> source, Block block, Width width, Bf16 *packed) {
    for (int64_t column = 0; column < width.padded; column += LANES) {
        const int64_t rows = std::min(LANES, width.padded - column);
        for (int64_t token = 0; token < block.block; token += 2 * LANES) {
            __m512i turned[LANES];
#pragma GCC unroll 16
            for (int64_t pair = 0; pair < LANES; ++pair) {
                turned[pair] = pairs_of(source, block, width, token + pair * 2, column);
            }
            transpose(turned);
            const __mmask32 inside = first_of(block.block - token);
            for (int64_t row = 0; row < rows; ++row) {
                _mm512_mask_storeu_epi16(packed + (column + row) * block.block + token, inside, turned[row]);
            }
        }
    }
}

RINGTUNE_AVX512 void pack_width_pairs(Rows<const Bf16> source, Block block, Width width, Bf16 *packed) {
    for (int64_t column = 0; column < width.padded; column += 2 * LANES) {
        const int64_t rows = std::min(2 * LANES, width.padded - column) / 2;
        for (int64_t token = 0; token < block.block; token += LANES) {
            __m512i turned[LANES];
#pragma GCC unroll 16
            for (int64_t row = 0; row < LANES; ++row) {
                turned[row] = columns_of(source, block, width, token + row, column);
            }
            transpose(turned);
            const __mmask32 inside = first_of(2 * (block.block - token));
            for (int64_t row = 0; row < rows; ++row) {
                _mm512_mask_storeu_epi16(packed + ((column / 2 + row) * block.block + token) * 2, inside, turned[row]);
            }
        }
    }
}

RINGTUNE_AVX512 void pack_token_pairs(Rows<const Bf16> source, Block block, int64_t width, Bf16 *packed) {
    const int64_t columns = round_up(width, LANES);
    for (int64_t token = 0; token < block.block; token += 2) {
        for (int64_t column = 0; column < columns; column += LANES) {
            _mm512_storeu_si512(packed + (token / 2 * columns + column) * 2,
                                pairs_of(source, block, {width, columns}, token, column));
        }
    }
}

RINGTUNE_AVX512 void store_transposed(const float *source, int64_t source_stride, const float *factor, float common,
                                      Rows<Bf16> target, Block block, int64_t width) {
    for (int64_t token = 0; token < block.count; token += LANES) {
        const __m512 factors = factor == nullptr ? _mm512_set1_ps(common) : _mm512_loadu_ps(factor + token);
        const auto column_at = [&](int64_t column) RINGTUNE_AVX512 {
            return column < width ? _mm512_mul_ps(_mm512_loadu_ps(source + column * source_stride + token), factors)
                                  : _mm512_setzero_ps();
        };
        const int64_t count = std::min(LANES, block.count - token);
        for (int64_t column = 0; column < width; column += 2 * LANES) {
            __m512i turned[LANES];
#pragma GCC unroll 16
            for (int64_t pair = 0; pair < LANES; ++pair) {
                turned[pair] = paired(to_bf16(column_at(column + pair * 2), column_at(column + pair * 2 + 1)));
            }
            transpose(turned);
            const __mmask32 inside = first_of(width - column);
            for (int64_t lane = 0; lane < count; ++lane) {
                _mm512_mask_storeu_epi16(target.row(block.first + token + lane) + column, inside, turned[lane]);
            }
        }
    }
}

RINGTUNE_AVX512 float dot(const Bf16 *left, const Bf16 *right, int64_t width) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t column = 0; column < width; column += LANES) {
        const __mmask16 mask = width - column >= LANES ? 0xFFFF : (1u << (width - column)) - 1;
        const __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, left + column));
        const __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, right + column));
        sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)),
                              _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), sum);
    }
    return _mm512_reduce_add_ps(sum);
}

void add_up(float *parts, int64_t elements, int64_t count, int64_t distance) {
    for (int64_t part = 1; part < count; ++part) {
        for (int64_t element = 0; element < elements; ++element) {
            parts[element] += parts[part * distance + element];
        }
    }
}

} // namespace ringtune::flash
