#include "dropout_lanes.h"

namespace ringtune::dropout {

namespace {

// The lanes of `kept` before `count`.
RINGTUNE_WIDE void put(float *factors, int64_t at, int64_t count, __mmask16 kept, float scale) {
    const int64_t left = count - at;
    const __mmask16 there = left >= 16 ? 0xFFFF : left > 0 ? __mmask16((1u << left) - 1) : 0;
    _mm512_mask_storeu_ps(factors + at, there, _mm512_maskz_mov_ps(kept, _mm512_set1_ps(scale)));
}

RINGTUNE_WIDE void wide_factors(const Mask &mask, int64_t sample, int64_t row, int64_t count, float *factors) {
    const Drawing drawing(mask, sample);
    for (int64_t at = 0; at < count; at += 32) {
        const Kept kept = kept_along(drawing, row, at);
        put(factors, at, count, kept.first, mask.scale);
        put(factors, at + 16, count, kept.second, mask.scale);
    }
}

} // namespace

void portable_factors(const Mask &mask, int64_t sample, int64_t row, int64_t count, float *factors) {
    const Drawing drawing(mask, sample);
    for (int64_t at = 0; at < count; at += 4) {
        uint32_t words[4] = {uint32_t(at / 4), uint32_t(row), uint32_t(drawing.name[0]), uint32_t(drawing.name[1])};
        for (const uint64_t(&keys)[2] : drawing.keys) {
            const uint64_t product0 = uint64_t(words[0]) * MULTIPLIERS[0], product1 = uint64_t(words[2]) * MULTIPLIERS[1];
            words[0] = uint32_t(product1 >> 32) ^ words[1] ^ uint32_t(keys[0]);
            words[1] = uint32_t(product1);
            words[2] = uint32_t(product0 >> 32) ^ words[3] ^ uint32_t(keys[1]);
            words[3] = uint32_t(product0);
        }
        for (int64_t word = 0; word < 4 && at + word < count; ++word) {
            factors[at + word] = words[word] >= mask.least ? mask.scale : 0.0f;
        }
    }
}

void factors(const Mask &mask, int64_t sample, int64_t row, int64_t count, float *factors) {
    return flash::wide() ? wide_factors(mask, sample, row, count, factors)
                         : portable_factors(mask, sample, row, count, factors);
}

} // namespace ringtune::dropout
