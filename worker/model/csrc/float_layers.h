// Layers with frozen fp32 weights, rows times a matrix and 3x3 convolutions that keep the size; and attention. For AVX2 and, by
// the same code twice as wide, for AVX-512. Plain pointers, no libtorch. Weights lie as they come from a file, and serve both ways: they
// need not be copied out of a mapped one. oneDNN, which has the rest, puts them into another order at every call, and its products
// of few rows are slow.
//
// Convolutions are computed by Winograd's method, F(4x4, 3x3) (Lavin and Gray 2015): 16 results of a channel from 36 products
// instead of 144. Products are added up 64 inputs at a time, and these sums to each other, which makes up for what the method
// loses: results are off by up to 1e-6 of their norm, as one long sum would be; oneDNN's by 1e-7.
//
// Which sums are added in which order depends on the layer and on one picture's size: never on threads or on the batch.
#pragma once

#include "frozen_layer.h"

#include <cstdint>

namespace ringtune::floats {

using flash::View;
using frozen::Pictures;

// What is computed here, by what it is used instead of.
enum class Family : unsigned { Products = 1, Convolutions = 2, Attention = 4, Sweeps = 8 };

// What is used with AVX-512 too, where libtorch's products are as fast as these: what was found to be faster than libtorch
// (`cargo run --release --workspace --example float_kernels`, docs/performance.md).
constexpr unsigned FASTER_WITH_AVX512 = static_cast<unsigned>(Family::Convolutions) |
                                        static_cast<unsigned>(Family::Attention) | static_cast<unsigned>(Family::Sweeps);

// Whether this is used here, and not libtorch's.
bool used(Family family);

// From here on these families, and no others, are used with AVX-512: for tests and benches.
void use_with_avx512(unsigned families);

// Whether channels are such as these kernels take: multiples of 16, or of 32 with AVX-512.
bool fits(int64_t inputs, int64_t outputs);

// What runs it: `threads` says into how many tasks work is cut, and moves no bit.
struct Runner {
    const flash::Backend &backend;
    int64_t threads;
};

enum class Way { Forward, Backward };

// The channels that go into a product, and those that come out: on the way back those of the layer the other way around.
struct Channels {
    int64_t inputs, outputs;
};

// `x`, `residual` and `result` are channels last, all without gaps. `bias` [outputs] and `residual`, which has the result's shape,
// may be null.
struct Operands {
    const float *x;
    const float *weights;
    const float *bias;
    const float *residual;
    float *result;
};

// result[rows][outputs] = x[rows][inputs] matrix (+ bias) (+ residual). `weights`, [layer's outputs][layer's inputs], are the
// matrix on the way back, and the matrix turned on the way forward.
void multiply(const Runner &runner, const Channels &channels, Way way, int64_t rows, const Operands &operands);

// A 3x3 convolution of [batches][height][width][inputs] with zeros around. `weights`: [layer's outputs][layer's inputs][9]; on
// the way back their places are taken from the last to the first.
void convolve(const Runner &runner, const Channels &channels, Way way, const Pictures &pictures, const Operands &operands);

// Softmax attention in fp32 and its gradient, as attention_kernels.h has them for bf16; nothing is dropped, and nothing is
// causal. `log_sum_exp`: [batch, heads, queries], in base 2.
void attend(const flash::Shape &shape, const Runner &runner, View<const float> query, View<const float> key,
            View<const float> value, View<float> output, float *log_sum_exp);

// The gradients that are wanted: data is null where not.
struct Gradients {
    View<float> query, key, value;
};

// What a gradient follows from.
struct Attended {
    View<const float> query, key, value, output;
    const float *log_sum_exp;
    View<const float> grad_output;
};

void attend_back(const flash::Shape &shape, const Runner &runner, const Attended &attended, const Gradients &gradients);

} // namespace ringtune::floats
