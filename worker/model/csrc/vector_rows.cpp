// Rows times a matrix, 6 rows by 64 outputs at a time, whose 24 sums stay in registers.

#include "task_cuts.h"
#include "vector_kernels.h"

namespace ringtune::vectors {

namespace {

constexpr int ROWS = 6;
// Rows that meet a group's weights before these leave a core's caches.
constexpr int64_t MOST_ROWS = 16 * ROWS;
constexpr int64_t FEWEST_ROWS = 4 * ROWS;
// What a task costs beside its rows, in rows.
constexpr int64_t TASK_COST = 4;
// Inputs that are added up while sums stay in registers.
constexpr int64_t MOST_INPUTS = 640;
// Weights that stay in a core's larger cache while all rows go by.
constexpr int64_t NEAR_BYTES = 400 << 10;

// A product of some rows and a group of outputs, over a piece of the inputs.
struct Piece {
    const Bf16 *x;
    int64_t inputs; // from row to row
    const Bf16 *weights;
    int64_t pairs;
    bool first, last;
    const Operands *operands;
    int64_t result; // where the first row's results lie
    int64_t output, outputs;
};

// Rounds COUNT rows of sums.
template <int VECTORS, int COUNT>
RINGTUNE_AVX512 inline void finish_tile(const Piece &piece, int64_t row, const __m512 (&all)[COUNT][VECTORS]) {
    __m512 bias[VECTORS];
#pragma GCC unroll 4
    for (int vector = 0; vector < VECTORS; ++vector) {
        bias[vector] = bias_of(*piece.operands, piece.output + vector * LANES);
    }
#pragma GCC unroll 6
    for (int at = 0; at < COUNT; ++at) {
        const int64_t place = piece.result + (row + at) * piece.outputs;
#pragma GCC unroll 4
        for (int vector = 0; vector < VECTORS; ++vector) {
            finish(all[at][vector], bias[vector], *piece.operands, place + vector * LANES);
        }
    }
}

// `sums`: [COUNT][VECTORS * 16], which hold what is not finished.
template <int VECTORS, int COUNT>
RINGTUNE_AVX512 inline void multiply_tile(const Piece &piece, int64_t row, float *sums) {
    __m512 all[COUNT][VECTORS];
#pragma GCC unroll 6
    for (int at = 0; at < COUNT; ++at) {
#pragma GCC unroll 4
        for (int vector = 0; vector < VECTORS; ++vector) {
            all[at][vector] = piece.first ? _mm512_setzero_ps() : _mm512_load_ps(sums + (at * VECTORS + vector) * LANES);
        }
    }
    const Bf16 *x = piece.x + row * piece.inputs, *weights = piece.weights;
    const int64_t pairs = piece.pairs, stride = piece.inputs;
    for (int64_t pair = 0; pair < pairs; ++pair) {
        __m512bh by[VECTORS];
#pragma GCC unroll 4
        for (int vector = 0; vector < VECTORS; ++vector) {
            by[vector] = (__m512bh)_mm512_loadu_si512(weights + (pair * VECTORS + vector) * PAIRS);
        }
#pragma GCC unroll 6
        for (int at = 0; at < COUNT; ++at) {
            int two;
            std::memcpy(&two, x + at * stride + pair * 2, sizeof two);
            const __m512bh values = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 4
            for (int vector = 0; vector < VECTORS; ++vector) {
                all[at][vector] = _mm512_dpbf16_ps(all[at][vector], values, by[vector]);
            }
        }
    }
    if (piece.last) {
        return finish_tile(piece, row, all);
    }
#pragma GCC unroll 6
    for (int at = 0; at < COUNT; ++at) {
#pragma GCC unroll 4
        for (int vector = 0; vector < VECTORS; ++vector) {
            _mm512_store_ps(sums + (at * VECTORS + vector) * LANES, all[at][vector]);
        }
    }
}

template <int VECTORS> RINGTUNE_AVX512 void multiply_piece(const Piece &piece, int64_t rows, float *sums) {
    int64_t row = 0;
    for (; row + ROWS <= rows; row += ROWS) {
        multiply_tile<VECTORS, ROWS>(piece, row, sums + row * VECTORS * LANES);
    }
    float *rest = sums + row * VECTORS * LANES;
    switch (rows - row) {
    case 5: return multiply_tile<VECTORS, 5>(piece, row, rest);
    case 4: return multiply_tile<VECTORS, 4>(piece, row, rest);
    case 3: return multiply_tile<VECTORS, 3>(piece, row, rest);
    case 2: return multiply_tile<VECTORS, 2>(piece, row, rest);
    case 1: return multiply_tile<VECTORS, 1>(piece, row, rest);
    default: return;
    }
}

// Rows [first, first + count) and the group of outputs from `output` on; `sums`: room for them.
void multiply_task(const Layer &layer, const Operands &operands, int64_t first, int64_t count, int64_t output, float *sums) {
    const int64_t depth = round_up(divide_up(layer.inputs, divide_up(layer.inputs, MOST_INPUTS)), 2);
    for (int64_t input = 0; input < layer.inputs; input += depth) {
        const Piece piece{operands.x + first * layer.inputs + input,
                          layer.inputs,
                          weights_of(layer, operands.weights, output, input),
                          std::min(depth, layer.inputs - input) / 2,
                          input == 0,
                          input + depth >= layer.inputs,
                          &operands,
                          first * layer.outputs + output,
                          output,
                          layer.outputs};
        vectors_of(layer, output) == 4 ? multiply_piece<4>(piece, count, sums) : multiply_piece<2>(piece, count, sums);
    }
}

} // namespace

void multiply_rows(const Runner &runner, const Layer &layer, int64_t rows, const Operands &operands) {
    const int64_t groups = divide_up(layer.outputs, GROUP), threads = runner.threads;
    const int64_t at_once = cuts::rows_of_task(rows, groups, threads, {MOST_ROWS, FEWEST_ROWS, TASK_COST});
    const int64_t blocks = divide_up(rows, at_once);
    // What is read again and again stays near: all weights beside the rows of a block, or a group's beside all rows.
    const bool by_rows = layer.inputs * layer.outputs * int64_t(sizeof(Bf16)) <= NEAR_BYTES;
    runner.backend.parallel_for(blocks * groups, [&](int64_t begin, int64_t end) {
        const Multiplying multiplying(runner.backend);
        alignas(64) float sums[MOST_ROWS * GROUP];
        for (int64_t task = begin; task < end; ++task) {
            const int64_t first = (by_rows ? task / groups : task % blocks) * at_once;
            const int64_t output = (by_rows ? task % groups : task / blocks) * GROUP;
            multiply_task(layer, operands, first, std::min(at_once, rows - first), output, sums);
        }
    });
}

} // namespace ringtune::vectors
