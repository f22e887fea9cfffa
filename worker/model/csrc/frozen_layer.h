// What kernels for layers with frozen bf16 weights take: a 3x3 convolution that keeps the size, or rows times a matrix,
// which is a 1x1 convolution.
#pragma once

#include "attention_kernels.h"

#include <cstdint>

namespace ringtune::frozen {

using flash::Bf16;

// Channels come in multiples of this.
constexpr int64_t WIDTH = 32;
// Weights between 32 channels and 32 others at one place of the kernel: 2 KB.
constexpr int64_t UNIT = WIDTH * WIDTH;

// [outputs][inputs][side][side]
struct Layer {
    int64_t inputs, outputs, side;

    int64_t places() const { return side * side; }
};

// Whether a layer is one that kernels of our own multiply.
inline bool fits(const Layer &layer) {
    return layer.inputs > 0 && layer.outputs > 0 && layer.inputs % WIDTH == 0 && layer.outputs % WIDTH == 0 &&
           (layer.side == 1 || layer.side == 3);
}

// Rows of a matrix are one picture of height 1.
struct Pictures {
    int64_t batches, height, width;
};

// Channels last, without gaps. `bias` [outputs] and `residual`, which has the result's shape, may be null.
struct Operands {
    const Bf16 *x;
    const Bf16 *weights;
    const Bf16 *bias;
    const Bf16 *residual;
    Bf16 *result;
};

} // namespace ringtune::frozen
