// What the kernels of vector_layers.h share.
#pragma once

#include "attention_blocks.h"
#include "vector_layers.h"

namespace ringtune::vectors {

using flash::divide_up;
using flash::LANES;
using flash::Multiplying;
using flash::round_up;
using flash::widened;
using frozen::WIDTH;

constexpr int64_t PLACES = 9; // of a 3x3 kernel
// Outputs that are summed up at once: two strips of 32, or the last one by itself.
constexpr int64_t GROUP = 2 * WIDTH;
// Inputs that are added up while sums stay in registers: their weights, transformed or not, stay in a core's larger cache.
constexpr int64_t DEPTH = 32;
// A vector of weights: 16 outputs of two inputs. Weights lie group by group, [inputs / 2][vectors of the group][places], so
// that each kernel reads them from the first to the last.
constexpr int64_t PAIRS = 2 * LANES;

void multiply_rows(const Runner &runner, const Layer &layer, int64_t rows, const Operands &operands);
void convolve_by_winograd(const Runner &runner, const Layer &layer, const Pictures &pictures, const Operands &operands);
void convolve_directly(const Runner &runner, const Layer &layer, const Pictures &pictures, const Operands &operands);

// How many vectors of outputs a group has, from its first output on.
inline int64_t vectors_of(const Layer &layer, int64_t output) {
    return std::min(GROUP, layer.outputs - output) / LANES;
}

// The packed weights of a group from an input, an even one, on.
inline const Bf16 *weights_of(const Layer &layer, const Bf16 *packed, int64_t output, int64_t input) {
    return packed + (output * layer.inputs + input * vectors_of(layer, output) * LANES) * layer.places();
}

// The weights of DEPTH inputs of a 3x3 layer's group that are wanted next, on their way from memory.
class Ahead {
  public:
    // Behind the DEPTH inputs from `input` on come the next, and then the next group's.
    Ahead(const Layer &layer, const Bf16 *packed, int64_t output, int64_t input) {
        if (input + DEPTH >= layer.inputs) {
            input = -DEPTH;
            output += GROUP;
        }
        if (output < layer.outputs) {
            next_ = weights_of(layer, packed, output, input + DEPTH);
            lines_ = DEPTH / 2 * vectors_of(layer, output) * PLACES;
        }
    }
    // Asks for a part of them.
    void fetch(int64_t part, int64_t parts) const {
        for (int64_t line = part * lines_ / parts; line < (part + 1) * lines_ / parts; ++line) {
            _mm_prefetch(next_ + line * PAIRS, _MM_HINT_T1);
        }
    }

  private:
    const Bf16 *next_ = nullptr;
    int64_t lines_ = 0;
};

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
