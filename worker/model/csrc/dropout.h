// Which numbers dropout keeps: a pure function of their place, never of threads or of what was drawn before. Plain
// pointers, no libtorch.
//
// Number e of row r of a sample is word e % 4 of Philox4x32-10 of key (n[0], n[1]) and counter (e / 4, r, n[2], n[3]),
// where n is the name of the sample's mask, which src/dropout.rs makes. It is kept where its word is at least
// `least`, and then multiplied by `scale`. The layout is fixed: every machine keeps the same numbers.
// Source of Philox: Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <cstdint>

extern "C" {

// src/dropout.rs has the same.
struct ringtune_mask {
    const uint32_t (*names)[4]; // of each sample
    int64_t samples;
    uint32_t least;
    float scale;
};

} // extern "C"

namespace ringtune::dropout {

using Mask = ringtune_mask;

// factors[e] = `scale` where number e of a row is kept, and 0 where not.
void factors(const Mask &mask, int64_t sample, int64_t row, int64_t count, float *factors);

// The same for any processor: `factors` takes it where AVX-512 is missing.
void portable_factors(const Mask &mask, int64_t sample, int64_t row, int64_t count, float *factors);

} // namespace ringtune::dropout
