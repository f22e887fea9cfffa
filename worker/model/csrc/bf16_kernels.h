// Kernels of the bfloat16 attention, in plain C types: bf16_kernels_avx512.cpp is compiled for AVX-512 with
// bf16 instructions and must not share any inline function with code for older processors.
//
// Layouts. A matrix "in pairs" holds two consecutive rows side by side, as dot-product instructions want
// their right operand: element (k, n) of a panel `width` columns wide is at [(k / 2) * width + n] * 2 + k % 2.
// A wider matrix is cut into panels of at most 64 columns (see panel_widths), stored one after the other.
#pragma once

#include <cstdint>

namespace ringtune {

typedef uint16_t bf16_bits;

// Queries a block; also the width of a full panel.
constexpr int64_t kQueryBlock = 64;

// Columns rounded up to whole vectors of 16.
inline int64_t padded_columns(int64_t columns) { return (columns + 15) / 16 * 16; }

// Width of panel `index` of `columns` (a multiple of 16) cut as evenly as possible into panels of at most 64.
inline int64_t panel_width(int64_t columns, int64_t index) {
    int64_t vectors = columns / 16, panels = (vectors + 3) / 4;
    return (vectors / panels + (index < vectors % panels ? 1 : 0)) * 16;
}

namespace avx512 {

// c[rows, columns] (+)= a[rows, depth] * b, all of b in pairs in one panel `columns` wide. columns: 16 to 64, a
// multiple of 16; depth even.
void matmul_panel(int64_t rows, int64_t columns, int64_t depth, int64_t a_stride, int64_t c_stride,
                  bool accumulate, const bf16_bits *a, const bf16_bits *b, float *c);

// One step of the online softmax (Milakov & Gimelshein 2018) over `keys` rows of transposed scores
// [keys, 64]: updates each query's running maximum and sum, writes the probabilities in pairs (an odd last row
// is followed by zeros), and rescales `output` [width, 64] to the new maximum. `scale` includes log2(e).
void softmax_step(int64_t keys, int64_t width, float scale, const float *scores, float *maximum, float *sum,
                  float *output, bf16_bits *probabilities);

// Backward of the softmax on transposed scores and transposed gradients of the probabilities, [keys, 64] each.
// p = exp2(score * scale_log2 - logsum); g = p * (gradient - delta) * scale. Writes p and g row by row, and g in
// pairs too.
void softmax_backward(int64_t keys, float scale_log2, float scale, const float *scores,
                      const float *gradient, const float *logsum, const float *delta,
                      bf16_bits *probabilities, bf16_bits *score_gradient, bf16_bits *score_gradient_pairs);

} // namespace avx512
} // namespace ringtune
