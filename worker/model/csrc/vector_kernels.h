// What the two methods of vector_convolution.h share.
#pragma once

#include "attention_blocks.h"
#include "vector_convolution.h"

namespace ringtune::vectors {

using flash::divide_up;
using flash::LANES;
using flash::Multiplying;
using flash::round_up;
using frozen::WIDTH;

constexpr int64_t PLACES = 9;
// Outputs that are summed up at once: two strips of 32, or the last one by itself.
constexpr int64_t GROUP = 2 * WIDTH;
// Inputs that are added up while sums stay in registers: their weights, transformed or not, stay in a core's larger cache.
constexpr int64_t DEPTH = 32;
// A vector of weights: 16 outputs of two inputs.
constexpr int64_t PAIRS = 2 * LANES;
// Both vectors of a strip, of two inputs at all places.
constexpr int64_t PAIR_OF_STRIP = 2 * PLACES * PAIRS;

void convolve_by_winograd(const Runner &runner, const Layer &layer, const Pictures &pictures, const Operands &operands);
void convolve_directly(const Runner &runner, const Layer &layer, const Pictures &pictures, const Operands &operands);

// The packed weights of 16 outputs, `vector` of a group's, from an input (an even one) on: [9][16 outputs][2 inputs]; for the next two inputs
// PAIR_OF_STRIP further on.
inline const Bf16 *weights_of(const Layer &layer, const Bf16 *packed, int64_t first_output, int64_t vector, int64_t input) {
    const int64_t strip = first_output / WIDTH + vector / 2;
    return packed + (strip * layer.inputs + input) / 2 * PAIR_OF_STRIP + vector % 2 * PLACES * PAIRS;
}

// The weights of DEPTH inputs and a group's outputs that are wanted next, on their way from memory.
class Ahead {
  public:
    // Behind the DEPTH inputs from `input` on come the next, and then the next group.
    Ahead(const Layer &layer, const Bf16 *packed, int64_t first_output, int64_t input) {
        const bool last = input + DEPTH >= layer.inputs;
        for (int64_t strip = 0; strip < 2; ++strip) {
            const int64_t output = first_output + (last ? GROUP : 0) + strip * WIDTH;
            if (output < layer.outputs) {
                strips_[strip] = weights_of(layer, packed, output, 0, last ? 0 : input + DEPTH);
            }
        }
    }
    // Asks for a part of them.
    void fetch(int64_t part, int64_t parts) const {
        for (const Bf16 *strip : strips_) {
            for (int64_t line = part * LINES / parts; strip != nullptr && line < (part + 1) * LINES / parts; ++line) {
                _mm_prefetch(strip + line * PAIRS, _MM_HINT_T1);
            }
        }
    }

  private:
    static constexpr int64_t LINES = DEPTH / 2 * PAIR_OF_STRIP / PAIRS;
    const Bf16 *strips_[2]{};
};

RINGTUNE_AVX512 static inline __m512 widened(const Bf16 *values) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(values));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// Sums of 16 outputs of a pixel, with bias and residual; rounded once. `at`: of the first, in the result.
RINGTUNE_AVX512 static inline void finish(__m512 sums, __m512 bias, const Operands &operands, int64_t at) {
    sums = _mm512_add_ps(sums, bias);
    if (operands.residual != nullptr) {
        sums = _mm512_add_ps(sums, widened(operands.residual + at));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(operands.result + at), (__m256i)_mm512_cvtneps_pbh(sums));
}

RINGTUNE_AVX512 static inline __m512 bias_of(const Operands &operands, int64_t output) {
    return operands.bias == nullptr ? _mm512_setzero_ps() : widened(operands.bias + output);
}

} // namespace ringtune::vectors
