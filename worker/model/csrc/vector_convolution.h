// 3x3 convolutions of bf16 that keep the size, on processors with AVX-512 BF16 and no AMX. Plain pointers, no libtorch.
//
// Most are computed by Winograd's method, F(4x4, 3x3) (Lavin and Gray 2015): 16 results of a channel from 36 products
// instead of 144. Its products are fp32, at half of the rate of bf16's: half of the time is saved, and what the
// method loses by rounding stays far below the one rounding of the result. Small pictures, for which the weights would be
// transformed in vain, are convolved directly, by products of bf16 that are added up in fp32.
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

inline bool fits(const Layer &layer) { return frozen::fits(layer) && layer.side == 3; }

enum class Method { Winograd, Direct };

// What takes less time for a picture, whatever its channels.
Method method_of(const Pictures &pictures);

// Puts the weights of the outputs [32 first, 32 end) in order; `weights`: [outputs][9][inputs]. Both methods read them.
void pack(const Layer &layer, const Bf16 *weights, int64_t first, int64_t end, Bf16 *packed);

// What runs it: `threads` says into how many tasks work is cut, and moves no bit.
struct Runner {
    const Backend &backend;
    int64_t threads;
};

void convolve(const Runner &runner, const Layer &layer, const Pictures &pictures, const Operands &operands);

} // namespace ringtune::vectors
