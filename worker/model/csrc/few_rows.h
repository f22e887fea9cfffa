// Products of few rows with large fp32 matrices, which lie in memory as they come from a file: a prompt's 77 tokens in
// the text encoder's layers. Plain pointers, no libtorch. For processors with AVX-512, where those of split_linear.h
// do not run. A sum's order depends on nothing but the number of its products.
#pragma once

#include "split_linear.h"

namespace ringtune::few_rows {

using split::Sizes;

// result[rows][outputs] = x weightT (+ bias, which may be null).
void multiply(const flash::Backend &backend, const Sizes &sizes, const float *x, const float *weight, const float *bias,
              float *result);

// result[rows][inputs] = gradient weight.
void multiply_back(const flash::Backend &backend, const Sizes &sizes, const float *gradient, const float *weight,
                   float *result);

} // namespace ringtune::few_rows
