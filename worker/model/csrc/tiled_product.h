// Layers of bf16 weights on AMX: a 3x3 convolution that keeps the size, or rows times a matrix, which is a 1x1 convolution.
// Plain pointers, no libtorch.
//
// Sums are fp32 from the first product to the last; bias and residual are added, and the result is rounded once. Which
// sums are added in which order depends on the layer alone: never on threads, on the picture's size or on the batch.
#pragma once

#include "attention_kernels.h"

#include <cstdint>

namespace ringtune::tiled {

using flash::Backend;
using flash::Bf16;

// Channels that are multiplied at once: two tiles of results, one of products.
constexpr int64_t WIDTH = 32;
// Weights between 32 channels and 32 others at one place of the kernel lie together: 2 KB.
constexpr int64_t UNIT = WIDTH * WIDTH;

// [outputs][inputs][side][side]
struct Layer {
    int64_t inputs, outputs, side;

    int64_t places() const { return side * side; }
};

// Whether a layer is one that is multiplied here.
inline bool fits(const Layer &layer) {
    return layer.inputs > 0 && layer.outputs > 0 && layer.inputs % WIDTH == 0 && layer.outputs % WIDTH == 0 &&
           (layer.side == 1 || layer.side == 3);
}

// Puts the weights of the outputs [32 first, 32 end) in order; `weights`: [outputs][places][inputs].
void pack(const Layer &layer, const Bf16 *weights, int64_t first, int64_t end, Bf16 *packed);

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

void multiply(const Backend &backend, const Layer &layer, const Pictures &pictures, const Operands &operands);

} // namespace ringtune::tiled
