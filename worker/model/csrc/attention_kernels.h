// Tiled softmax attention in bf16 with its gradient, for processors with AVX-512 BF16. Plain pointers, no
// libtorch. The method is FlashAttention's (Dao et al. 2022, algorithms 2 and 4, and Dao 2023): no
// queries x keys matrix ever lies in memory; the backward pass computes the probabilities again, block by
// block, from the forward pass's log-sum-exp.
//
// Products take bf16 operands and add up in fp32; maxima, exponentials, sums and gradients are fp32.
// Which sums are added in which order depends on the shapes alone, never on threads or scheduling.
#pragma once

#include "dropout.h"
#include "instructions.h"

#include <cstdint>
#include <functional>

namespace ringtune::flash {

using Bf16 = uint16_t;

// One operand: [batch, tokens, heads, width]; the width is contiguous, the strides count elements.
template <typename Element> struct View {
    Element *data;
    int64_t batch_stride;
    int64_t token_stride;
    int64_t head_stride;
};
using Input = View<const Bf16>;
using Output = View<Bf16>;

// Every count is at least 1; the scale is positive.
struct Shape {
    int64_t batches;
    int64_t heads;
    int64_t queries;
    int64_t keys;
    int64_t width;
    float scale;
    // Whether a query attends to the keys up to its own place only; then there are as many of both.
    bool causal = false;
    // What is dropped of the probabilities; null: nothing. A sample is one of the batch, its row number
    // head * queries + query is a query of a head, and the numbers in it are keys.
    const dropout::Mask *mask = nullptr;
};

// c[m, n] = a[m, k] b[k, n] (+ c, if `accumulate`). `a` is row-major; `b` holds its rows in pairs,
// [k/2][ldb][2], as AMX and vdpbf16ps want them; m and k are multiples of what the backend says, n of 16; the strides
// count elements of a, columns of b, elements of c.
using Gemm = void (*)(int64_t m, int64_t n, int64_t k, const Bf16 *a, int64_t lda, const Bf16 *b, int64_t ldb,
                      float *c, int64_t ldc, bool accumulate);

// What the algorithm runs on.
struct Backend {
    Gemm gemm;
    // What a product's m and k are multiples of; both divide 32. Operands are zero behind their ends.
    int64_t rows;
    int64_t depth;
    // Called by a thread before its first product and after its last: see Multiplying.
    void (*acquire)() noexcept;
    void (*release)() noexcept;
    // Calls body(begin, end) on disjoint ranges that cover [0, tasks), on several threads.
    std::function<void(int64_t tasks, const std::function<void(int64_t begin, int64_t end)> &body)> parallel_for;
};

// Whether what is below is used here.
inline bool supported() { return instructions::has(instructions::Set::Avx512Bf16); }

// Whether what needs AVX-512, and no bf16, is.
inline bool wide() { return instructions::has(instructions::Set::Avx512); }

// Matrix product by vdpbf16ps, for processors with AVX-512 BF16 and no AMX.
void gemm_avx512(int64_t m, int64_t n, int64_t k, const Bf16 *a, int64_t lda, const Bf16 *b, int64_t ldb,
                 float *c, int64_t ldc, bool accumulate);

// Rows and depth of gemm_amx.
constexpr int64_t AMX_ROWS = 16;
constexpr int64_t AMX_DEPTH = 32;

// Whether AMX for bf16 is.
inline bool amx_supported() { return instructions::has(instructions::Set::Amx); }

// Matrix product on AMX's tiles, between acquire_amx and release_amx of the same thread.
void gemm_amx(int64_t m, int64_t n, int64_t k, const Bf16 *a, int64_t lda, const Bf16 *b, int64_t ldb, float *c,
              int64_t ldc, bool accumulate);
void acquire_amx() noexcept;
void release_amx() noexcept;

// output = softmax(scale query keyT) value. `log_sum_exp` ([batch, heads, queries]) gets the base-2 logarithm of
// the sum of exp(scale query keyT) over the keys, for backward.
void forward(const Shape &shape, const Backend &backend, Input query, Input key, Input value, Output output,
             float *log_sum_exp);

// The gradients that are wanted: data is null where not.
struct Gradients {
    Output query;
    Output key;
    Output value;
};

void backward(const Shape &shape, const Backend &backend, Input query, Input key, Input value, Input output,
              const float *log_sum_exp, Input grad_output, Gradients gradients);

} // namespace ringtune::flash
