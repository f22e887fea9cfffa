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

void pack_columns(Rows<const Bf16> source, Block block, Width width, Bf16 *packed) {
    if (block.count < block.block || width.filled < width.padded) {
        std::fill(packed, packed + width.padded * block.block, Bf16{0});
    }
    for (int64_t token = 0; token < block.count; ++token) {
        const Bf16 *row = source.row(block.first + token);
        for (int64_t column = 0; column < width.filled; ++column) {
            packed[column * block.block + token] = row[column];
        }
    }
}

void pack_width_pairs(Rows<const Bf16> source, Block block, Width width, Bf16 *packed) {
    if (block.count < block.block || width.filled < width.padded) {
        std::fill(packed, packed + width.padded * block.block, Bf16{0});
    }
    for (int64_t token = 0; token < block.count; ++token) {
        const Bf16 *row = source.row(block.first + token);
        for (int64_t pair = 0; pair < width.filled / 2; ++pair) {
            std::memcpy(packed + (pair * block.block + token) * 2, row + pair * 2, 2 * sizeof(Bf16));
        }
        if (width.filled % 2 == 1) {
            packed[(width.filled / 2 * block.block + token) * 2] = row[width.filled - 1];
        }
    }
}

void pack_token_pairs(Rows<const Bf16> source, Block block, int64_t width, Bf16 *packed) {
    const int64_t columns = round_up(width, LANES);
    std::fill(packed, packed + block.block * columns, Bf16{0});
    for (int64_t token = 0; token < block.count; ++token) {
        const Bf16 *row = source.row(block.first + token);
        Bf16 *target = packed + token / 2 * columns * 2 + token % 2;
        for (int64_t column = 0; column < width; ++column) {
            target[column * 2] = row[column];
        }
    }
}

RINGTUNE_AVX512 void store_transposed(const float *source, int64_t source_stride, const float *factor, float common,
                                      Bf16 *scratch, Rows<Bf16> target, Block block, int64_t width) {
    for (int64_t token = 0; token < block.count; token += LANES) {
        const __m512 factors = factor == nullptr ? _mm512_set1_ps(common) : _mm512_loadu_ps(factor + token);
        for (int64_t column = 0; column < width; ++column) {
            const __m512 values = _mm512_mul_ps(_mm512_loadu_ps(source + column * source_stride + token), factors);
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(scratch + column * LANES),
                                (__m256i)_mm512_cvtneps_pbh(values));
        }
        const int64_t count = std::min(LANES, block.count - token);
        for (int64_t lane = 0; lane < count; ++lane) {
            Bf16 *row = target.row(block.first + token + lane);
            for (int64_t column = 0; column < width; ++column) {
                row[column] = scratch[column * LANES + lane];
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
