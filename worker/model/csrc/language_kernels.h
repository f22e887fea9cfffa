// What a language model's training takes beside products and attention, in one sweep each. Plain pointers, no libtorch.
// Element is float or bf16 (uint16_t); all arithmetic is fp32. Each function works on one stretch of rows or numbers;
// whoever calls divides them. The order of sums within a stretch depends on its size alone.
#pragma once

#include <cstdint>

namespace ringtune::language {

using Bf16 = uint16_t;

// Rows that are one part of a sum over rows: fixed, so that no bit depends on the number of threads.
constexpr int64_t STRETCH = 64;

// A layer norm's factors and offsets, [width]; no offsets: null.
struct Affine {
    const float *weight;
    const float *bias;
};

// sum = x + added, where something is added; y = (sum - mean) / deviation * weight + bias, row by row. `statistics`:
// [rows][2], mean and 1 / deviation. Without `added` (null), `sum` is not written.
template <typename Element>
void add_and_norm(int64_t rows, int64_t width, const float *x, const Element *added, Affine affine, float epsilon,
                  float *sum, Element *y, float *statistics);

// The way back of the norm of x: adds its gradient to `residual`, and writes that rounded to `low` where that is not
// null. `parts`: [2][width], this stretch's sums for weight and bias.
template <typename Element>
void norm_backward(int64_t rows, int64_t width, const float *x, const float *statistics, const float *weight,
                   const Element *gradient, float *residual, Element *low, float *parts);

// x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), which is GELU with tanh: Hendrycks & Gimpel 2016; transformers'
// "gelu_new".
template <typename Element> void gelu(int64_t count, const Element *x, Element *y);
// gradient *= the slope at x.
template <typename Element> void gelu_backward(int64_t count, const Element *x, Element *gradient);

// sums[column] = the sum over the rows.
template <typename Element> void column_sums(int64_t rows, int64_t width, const Element *x, float *sums);

// target = parts[0] + parts[1] + …, in this order, `distance` numbers apart; added to what is there if `add`.
void add_up(int64_t width, const float *parts, int64_t count, int64_t distance, bool add, float *target);

// losses[row] = -log softmax(logits)[target], in nats. With `powers`, [width] to work in, the logits become its gradient times
// `scale`; null: they stay.
template <typename Element>
void cross_entropy(int64_t rows, int64_t width, Element *logits, const int64_t *targets, float scale, float *powers,
                   float *losses);

// target = source, or target += source.
template <typename Element> void put(int64_t count, const Element *source, bool add, float *target);

// The same with source [width][rows], whose rows are `stride` apart, and target [rows][width].
template <typename Element>
void put_turned(int64_t rows, int64_t width, const Element *source, int64_t stride, bool add, float *target);

// The rows of each place together: those of place p are order[starts[p]] … order[starts[p + 1] - 1], in their own order. `places`:
// of each row, below `count`; `starts`: [count + 1], `order`: [rows].
void by_places(int64_t rows, const int64_t *places, int64_t count, int64_t *starts, int64_t *order);

// target = the sum of these rows of x, in this order; without `add` zeros where there is none, with it added to what is there.
void sum_of_rows(int64_t width, const float *x, const int64_t *rows, int64_t count, bool add, float *target);

// x *= factors, of `count` numbers; rounded once.
template <typename Element> void multiply(int64_t count, const float *factors, Element *x);

// Rows of attention's scores, of queries `first` ..., of which each sees the keys up to its own place: they become
// probabilities times their `factors` [rows][keys], and 0 for keys that are not seen. `log_sums`: [rows], of the scores
// times `scale`.
void dropped_softmax(int64_t rows, int64_t keys, int64_t first, float scale, const float *factors, float *scores,
                     float *log_sums);

// The way back: the scores become the same probabilities times their factors again, and `slopes`, the gradient of these,
// that of the scores. `dots`: [rows], of each query's output and its gradient.
void dropped_softmax_backward(int64_t rows, int64_t keys, int64_t first, float scale, const float *factors,
                              const float *log_sums, const float *dots, float *scores, float *slopes);

// The sum of squares, added up in double precision.
double squares(int64_t count, const float *x);

// Whether all are finite.
bool finite(int64_t count, const float *x);

// What one step of AdamW does to each number.
struct AdamW {
    float factor;      // of the gradient
    float keep;        // of the parameter
    float new_mean;    // 1 - beta1
    float keep_square; // beta2
    float new_square;  // 1 - beta2
    float scale;       // sqrt(1 - beta2^t)
    float step_size;   // -learning rate / (1 - beta1^t)
    float epsilon;
};

// The numbers that a step moves; `low`, where that is not null, gets the new parameters rounded.
struct Moved {
    float *parameter;
    float *mean;
    float *square;
    Bf16 *low;
};

void adamw(int64_t count, const AdamW &step, const float *gradient, Moved moved);

} // namespace ringtune::language
