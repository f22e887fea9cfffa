// What one more token of a text takes beside norms and GELU: products of one row with whole matrices, and attention over
// what is kept. Plain pointers, no libtorch. Element is float or bf16 (uint16_t); all arithmetic is fp32. The order of
// sums depends on sizes alone.
#pragma once

#include "language_kernels.h"

namespace ringtune::text {

using ringtune::language::Bf16;

// factors = x [width] in the order in which times_rows takes it.
void spread(int64_t width, const float *x, float *factors);
void spread(int64_t width, const Bf16 *x, float *factors);

// result[row] = sum of x[column] matrix[row][column], and bias[row] where that is not null: each row is read once, in
// order. `factors`: x, spread. Out is Element or float.
template <typename Element, typename Out>
void times_rows(int64_t rows, int64_t width, const float *factors, const Element *matrix, const Element *bias,
                Out *result);

// softmax(query keys^T / sqrt(width)) values of one head. `keys`, `values`: [tokens][width]; `weights`: room for [tokens].
template <typename Element>
void attend(int64_t tokens, int64_t width, const Element *query, const Element *keys, const Element *values,
            float *weights, Element *result);

} // namespace ringtune::text
