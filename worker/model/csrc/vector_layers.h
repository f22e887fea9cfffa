// Layers with frozen bf16 weights on processors with AVX-512 BF16 and no AMX: rows times a matrix, and 3x3 convolutions
// that keep the size. Plain pointers, no libtorch.
//
// Most convolutions are computed by Winograd's method, F(4x4, 3x3) (Lavin and Gray 2015): 16 results of a channel from 36
// products instead of 144. Its products are fp32, at half of the rate of bf16's: half of the time is saved, and what the
// method loses by rounding stays far below the one rounding of the result. Small pictures, for which the weights would be
// transformed in vain, are convolved directly; there, and for rows, products of bf16 are added up in fp32.
//
// Which sums are added in which order depends on the layer and on one picture's size: never on threads or on the batch.
#pragma once

#include "frozen_layer.h"

namespace ringtune::vectors {

using flash::Backend;
using flash::Bf16;
using frozen::Layer;
using frozen::Operands;
using frozen::Pictures;

enum class Method { Winograd, Direct };

// What takes less time for a 3x3 convolution of such a picture, whatever its channels.
Method method_of(const Pictures &pictures);

// Puts the weights of the outputs [32 first, 32 end) in order; `weights`: [outputs][places][inputs].
void pack(const Layer &layer, const Bf16 *weights, int64_t first, int64_t end, Bf16 *packed);

// What runs it: `threads` says into how many tasks work is cut, and moves no bit.
struct Runner {
    const Backend &backend;
    int64_t threads;
};

void multiply(const Runner &runner, const Layer &layer, const Pictures &pictures, const Operands &operands);

} // namespace ringtune::vectors
