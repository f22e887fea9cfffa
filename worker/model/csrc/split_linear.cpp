#include "split_linear.h"

#include "attention_blocks.h"

namespace ringtune::split {

namespace {

using flash::Backend;
using flash::Bf16;
using flash::divide_up;
using flash::LANES;
using flash::Multiplying;
using flash::round_up;

// Weights are split where they are used, from where they lie: halves that were kept would take their memory again, twice.
constexpr int64_t OUTPUT_STRIP = 32; // of weights that one task of the way forward splits at once
constexpr int64_t INPUT_STRIP = 64;  // of the way back
constexpr int64_t OUTPUT_SLAB = 512; // and rows of them, which stay in a core's own cache
constexpr int64_t PAIR = 2 * LANES;

// High and low halves of the same values, in the same order.
struct Halves {
    Buffer<Bf16> high, low;

    explicit Halves(int64_t elements) : high(allocate<Bf16>(elements)), low(allocate<Bf16>(elements)) {}
};

RINGTUNE_AVX512 inline __m512 load(const float *row, int64_t column, int64_t end) {
    const int64_t left = end - column;
    if (left >= LANES) {
        return _mm512_loadu_ps(row + column);
    }
    return left > 0 ? _mm512_maskz_loadu_ps(__mmask16((1u << left) - 1), row + column) : _mm512_setzero_ps();
}

// The halves of two vectors of values.
struct Split {
    __m512i high, low;
};

RINGTUNE_AVX512 inline __m512 rest_of(__m512 values, __m256i high) {
    return _mm512_sub_ps(values, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16)));
}

RINGTUNE_AVX512 inline Split split(__m512 first, __m512 second) {
    const __m512i high = flash::to_bf16(first, second);
    const __m512 first_rest = rest_of(first, _mm512_castsi512_si256(high));
    return {high, flash::to_bf16(first_rest, rest_of(second, _mm512_extracti64x4_epi64(high, 1)))};
}

// Rows of `columns` values as a left operand, [rows][stride]; what lies behind the columns, up to the stride, is zero.
RINGTUNE_AVX512 void split_row(const float *row, int64_t columns, int64_t stride, Bf16 *high, Bf16 *low) {
    for (int64_t column = 0; column < stride; column += PAIR) {
        const Split halves = split(load(row, column, columns), load(row, column + LANES, columns));
        _mm512_storeu_si512(high + column, halves.high);
        _mm512_storeu_si512(low + column, halves.low);
    }
}

// Two rows as one pair of rows of a right operand, [stride][2], from `first` to `end` of their columns.
RINGTUNE_AVX512 void split_pair(const float *upper, const float *lower, int64_t first, int64_t end, int64_t stride,
                                Bf16 *high, Bf16 *low) {
    for (int64_t at = 0; at < stride; at += LANES) {
        const __m512 above = load(upper, first + at, end);
        const __m512 below = lower == nullptr ? _mm512_setzero_ps() : load(lower, first + at, end);
        const Split halves = split(above, below);
        _mm512_storeu_si512(high + at * 2, flash::paired(halves.high));
        _mm512_storeu_si512(low + at * 2, flash::paired(halves.low));
    }
}

// All rows as a left operand.
Halves split_rows(const Backend &backend, const float *x, int64_t rows, int64_t columns) {
    const int64_t stride = round_up(columns, PAIR), all = round_up(rows, backend.rows);
    Halves halves(all * stride);
    backend.parallel_for(all, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            split_row(x + row * columns, row < rows ? columns : 0, stride, &halves.high[row * stride],
                      &halves.low[row * stride]);
        }
    });
    return halves;
}

// All rows as a right operand whose product adds up over the columns: [stride/2][all][2].
Halves split_turned(const Backend &backend, const float *x, int64_t rows, int64_t columns, int64_t stride, int64_t all) {
    Halves halves(all * stride);
    backend.parallel_for(all, [&](int64_t begin, int64_t end) {
        const Halves row_halves(stride);
        const auto turn = [&](const Bf16 *from, int64_t row, Bf16 *to) {
            for (int64_t pair = 0; pair < stride / 2; ++pair) {
                std::memcpy(to + (pair * all + row) * 2, from + pair * 2, 2 * sizeof(Bf16));
            }
        };
        for (int64_t row = begin; row < end; ++row) {
            split_row(x + row * columns, row < rows ? columns : 0, stride, &row_halves.high[0], &row_halves.low[0]);
            turn(&row_halves.high[0], row, &halves.high[0]);
            turn(&row_halves.low[0], row, &halves.low[0]);
        }
    });
    return halves;
}

// Two operands' halves, from their first values on.
struct Operand {
    const Bf16 *high, *low;
    int64_t stride;
};

// c (+)= a b, all three products.
void multiply_halves(const Backend &backend, const int64_t (&sizes)[3], const Operand &a, const Operand &b, float *c,
                     int64_t c_stride, bool accumulate) {
    const auto [m, n, k] = sizes;
    backend.gemm(m, n, k, a.high, a.stride, b.high, b.stride, c, c_stride, accumulate);
    backend.gemm(m, n, k, a.high, a.stride, b.low, b.stride, c, c_stride, true);
    backend.gemm(m, n, k, a.low, a.stride, b.high, b.stride, c, c_stride, true);
}

} // namespace

void multiply(const Backend &backend, const Sizes &sizes, const float *x, const float *weight, const float *bias,
              float *result) {
    const auto [rows, inputs, outputs] = sizes;
    // The product is made transposed, [outputs][rows]: weights are then a left operand, row by row as they lie.
    const int64_t stride = round_up(inputs, PAIR), columns = round_up(rows, std::max(backend.rows, LANES));
    const Halves right = split_turned(backend, x, rows, inputs, stride, columns);
    backend.parallel_for(divide_up(outputs, OUTPUT_STRIP), [&](int64_t begin, int64_t end) {
        const Multiplying multiplying(backend);
        Halves left(OUTPUT_STRIP * stride);
        const Buffer<float> sums = allocate<float>(OUTPUT_STRIP * columns);
        for (int64_t task = begin; task < end; ++task) {
            const int64_t first = task * OUTPUT_STRIP, count = std::min(OUTPUT_STRIP, outputs - first);
            for (int64_t row = 0; row < OUTPUT_STRIP; ++row) {
                split_row(weight + (first + row) * inputs, row < count ? inputs : 0, stride, &left.high[row * stride],
                          &left.low[row * stride]);
            }
            multiply_halves(backend, {OUTPUT_STRIP, columns, stride}, {&left.high[0], &left.low[0], stride},
                            {&right.high[0], &right.low[0], columns}, &sums[0], columns, false);
            for (int64_t row = 0; row < rows; ++row) {
                for (int64_t output = 0; output < count; ++output) {
                    result[row * outputs + first + output] =
                        sums[output * columns + row] + (bias == nullptr ? 0.0f : bias[first + output]);
                }
            }
        }
    });
}

void multiply_back(const Backend &backend, const Sizes &sizes, const float *gradient, const float *weight,
                   float *result) {
    const auto [rows, inputs, outputs] = sizes;
    const int64_t stride = round_up(outputs, PAIR), tall = round_up(rows, backend.rows);
    const Halves left = split_rows(backend, gradient, rows, outputs);
    backend.parallel_for(divide_up(inputs, INPUT_STRIP), [&](int64_t begin, int64_t end) {
        const Multiplying multiplying(backend);
        Halves right(OUTPUT_SLAB * INPUT_STRIP);
        const Buffer<float> sums = allocate<float>(tall * INPUT_STRIP);
        for (int64_t task = begin; task < end; ++task) {
            const int64_t first = task * INPUT_STRIP, last = std::min(first + INPUT_STRIP, inputs);
            for (int64_t slab = 0; slab < stride; slab += OUTPUT_SLAB) {
                const int64_t depth = std::min(OUTPUT_SLAB, stride - slab);
                for (int64_t row = 0; row < depth; row += 2) {
                    const int64_t output = slab + row, at = row * INPUT_STRIP;
                    const float *upper = weight + output * inputs;
                    split_pair(upper, output + 1 < outputs ? upper + inputs : nullptr, first,
                               output < outputs ? last : first, INPUT_STRIP, &right.high[at], &right.low[at]);
                }
                multiply_halves(backend, {tall, INPUT_STRIP, depth}, {&left.high[slab], &left.low[slab], stride},
                                {&right.high[0], &right.low[0], INPUT_STRIP}, &sums[0], INPUT_STRIP, slab > 0);
            }
            for (int64_t row = 0; row < rows; ++row) {
                std::copy(&sums[row * INPUT_STRIP], &sums[row * INPUT_STRIP] + (last - first),
                          result + row * inputs + first);
            }
        }
    });
}

} // namespace ringtune::split
