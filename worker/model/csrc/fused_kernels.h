// Elementwise work of the residual blocks and transformers in one pass instead of several: for bf16 on processors
// with AVX-512 BF16 (flash::supported()), for fp32 on those with AVX2 or AVX-512. Plain pointers, no libtorch.
// Everything between reading and writing bf16 is fp32. Each function works on one stretch of rows; whoever calls divides the rows.
#pragma once

#include <cstdint>

namespace ringtune::fused {

using Bf16 = uint16_t;

// Rows of one picture in channels-last order, or of one part of its channels. Of what belongs to the part alone (x,
// result) row r is at data + r * channels; of what has all channels (y, gradient) at data + r * all.
struct Rows {
    int64_t count;
    int64_t channels;
    int64_t all;
};

// sums[c] = sum of x over the rows, squares[c] = sum of x * x.
void channel_moments(Rows rows, const Bf16 *x, float *sums, float *squares);
void channel_moments(Rows rows, const float *x, double *sums, double *squares);

// y = act(x * scale[c] + shift[c]), where act is SiLU or nothing.
void scale_shift(Rows rows, bool silu, const Bf16 *x, const float *scale, const float *shift, Bf16 *y);
void scale_shift(Rows rows, bool silu, const float *x, const float *scale, const float *shift, float *y);

// With g the gradient before the activation: sums[c] = sum of g, products[c] = sum of g * x over the rows.
void gradient_moments(Rows rows, bool silu, const Bf16 *x, const float *scale, const float *shift,
                      const Bf16 *gradient, float *sums, float *products);
void gradient_moments(Rows rows, bool silu, const float *x, const float *scale, const float *shift,
                      const float *gradient, float *sums, float *products);

// What becomes of a gradient, channel by channel.
struct Slopes {
    const float *slope;
    const float *offset;
};

// Another gradient of the same input, whose row r is at data + r * stride; null for none.
template <typename Element> struct Kept {
    const Element *data;
    int64_t stride;
};

// result = g * scale[c] + x * slope[c] + offset[c] + kept.
void scale_shift_backward(Rows rows, bool silu, const Bf16 *x, const float *scale, const float *shift,
                          const Bf16 *gradient, Slopes slopes, Kept<Bf16> kept, Bf16 *result);
void scale_shift_backward(Rows rows, bool silu, const float *x, const float *scale, const float *shift,
                          const float *gradient, Slopes slopes, Kept<float> kept, float *result);

// A layer norm's scale and shift, each [width].
struct Affine {
    const float *weight;
    const float *bias;
};

// y = (x - mean) / deviation * weight + bias for each row of `width`; statistics: [rows][2], mean and 1 / deviation.
void layer_norm(int64_t rows, int64_t width, Affine affine, float epsilon, const Bf16 *x, Bf16 *y,
                float *statistics);
void layer_norm(int64_t rows, int64_t width, Affine affine, float epsilon, const float *x, float *y,
                float *statistics);

// The gradient of layer_norm, plus `kept` unless it is null.
void layer_norm_backward(int64_t rows, int64_t width, const float *weight, const Bf16 *x, const float *statistics,
                         const Bf16 *gradient, const Bf16 *kept, Bf16 *result);
void layer_norm_backward(int64_t rows, int64_t width, const float *weight, const float *x, const float *statistics,
                         const float *gradient, const float *kept, float *result);

// y[r, i] = x[r, i] * gelu(x[r, width + i]), exact GELU; x has rows of 2 * width.
void geglu(int64_t rows, int64_t width, const Bf16 *x, Bf16 *y);
void geglu(int64_t rows, int64_t width, const float *x, float *y);

// The gradient of geglu, [rows, 2 * width].
void geglu_backward(int64_t rows, int64_t width, const Bf16 *x, const Bf16 *gradient, Bf16 *result);
void geglu_backward(int64_t rows, int64_t width, const float *x, const float *gradient, float *result);

} // namespace ringtune::fused
