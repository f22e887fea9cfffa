// Everything that includes libtorch's headers, as one translation unit: reading them takes a compiler ten seconds each
// time, which is more than all of our own code.

#include "shim.cpp"

#include "packing.cpp"

#include "allocator.cpp"
#include "attention.cpp"
#include "convolution.cpp"
#include "fused.cpp"
#include "frozen_layers.cpp"
#include "group_norm.cpp"
#include "language.cpp"
#include "language_products.cpp"
#include "language_step.cpp"

#include "dropped_attention.cpp"

#include "causal_attention.cpp"
#include "linear.cpp"
#include "plain_convolution.cpp"
#include "profile.cpp"
#include "text.cpp"
#include "threads.cpp"
#include "weight_gradient.cpp"
