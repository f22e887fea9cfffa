// Layers with frozen bf16 weights on AMX. Plain pointers, no libtorch.
//
// Sums are fp32 from the first product to the last; bias and residual are added, and the result is rounded once. Which
// sums are added in which order depends on the layer alone: never on threads, on the picture's size or on the batch.
#pragma once

#include "frozen_layer.h"

namespace ringtune::tiled {

using flash::Backend;
using flash::Bf16;
using frozen::Layer;
using frozen::Operands;
using frozen::Pictures;
using frozen::UNIT;
using frozen::WIDTH;

// Puts the weights of the outputs [32 first, 32 end) in order, two tiles of results and one of products wide; `weights`:
// [outputs][places][inputs].
void pack(const Layer &layer, const Bf16 *weights, int64_t first, int64_t end, Bf16 *packed);

void multiply(const Backend &backend, const Layer &layer, const Pictures &pictures, const Operands &operands);

} // namespace ringtune::tiled
