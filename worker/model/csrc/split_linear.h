// Products of fp32 operands on AMX: each value is the sum of two bf16 halves, and a product that of three, high x high,
// high x low and low x high, added up in fp32. What is left out is 2^-16 of a product: a hundredth of what bf16 alone
// loses. Henry, Tang, Heinecke 2019, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
// Computations". Plain pointers, no libtorch. The order of sums depends on the sizes alone. For processors with AMX.
#pragma once

#include "attention_kernels.h"

namespace ringtune::split {

// Weights [outputs][inputs] times inputs [rows][inputs], or the way back, gradients [rows][outputs].
struct Sizes {
    int64_t rows;
    int64_t inputs;
    int64_t outputs;
};

// result[rows][outputs] = x weightT (+ bias, which may be null). Where amx_supported().
void multiply(const flash::Backend &backend, const Sizes &sizes, const float *x, const float *weight, const float *bias,
              float *result);

// result[rows][inputs] = gradient weight.
void multiply_back(const flash::Backend &backend, const Sizes &sizes, const float *gradient, const float *weight,
                   float *result);

} // namespace ringtune::split
