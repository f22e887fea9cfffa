// Rows lie in a vector's lanes, 80 of them, so that every weight is one broadcast and no weight is ever put in another
// order. The operand is turned before, and the sums are turned back: both are small beside the weights.

#include "few_rows.h"

#include "attention_blocks.h"

namespace ringtune::few_rows {

namespace {

using flash::Backend;
using flash::divide_up;
using flash::LANES;
using flash::Multiplying;

constexpr int64_t VECTORS = 5; // of rows, whose sums are in registers at once
constexpr int64_t BLOCK = VECTORS * LANES;
constexpr int64_t COLUMNS = 4;  // of the result, likewise
constexpr int64_t STRIP = 64;   // columns of the result that are one task
constexpr int64_t STRETCH = 64; // products that are added up meanwhile; their rows stay in a core's nearest cache

// A matrix [depth][columns] whose elements lie so far apart; one of the two is 1.
struct Right {
    const float *values;
    int64_t column, depth;

    const float *at(int64_t which_column, int64_t which_depth) const {
        return values + which_column * column + which_depth * depth;
    }
};

// result[rows][columns] = left[rows][depth] right.
struct Product {
    int64_t rows, depth, columns;
    const float *left;
    Right right;
    const float *bias; // of the columns; may be null
    float *result;
};

RINGTUNE_WIDE inline __mmask16 lanes_before(int64_t at, int64_t end) {
    return __mmask16((1u << std::clamp<int64_t>(end - at, 0, LANES)) - 1);
}

// 16 x 16 elements turned. Of the `rows` x `columns` that are read, the first `written` of each column are written, zeros
// behind the last row.
RINGTUNE_WIDE void turn(const float *from, int64_t from_stride, int64_t rows, int64_t columns, float *to,
                        int64_t to_stride, int64_t written) {
    __m512i all[LANES];
    const __mmask16 inside = lanes_before(0, columns);
#pragma GCC unroll 16
    for (int64_t row = 0; row < LANES; ++row) {
        all[row] = row < rows ? _mm512_maskz_loadu_epi32(inside, from + row * from_stride) : _mm512_setzero_si512();
    }
    flash::transpose(all);
    const __mmask16 kept = lanes_before(0, written);
#pragma GCC unroll 16
    for (int64_t column = 0; column < LANES; ++column) {
        if (column < columns) {
            _mm512_mask_storeu_epi32(to + column * to_stride, kept, all[column]);
        }
    }
}

// The left operand turned: [blocks of 80 rows][depth][80], with zeros behind the last row.
Buffer<float> turned(const Backend &backend, const Product &product) {
    const int64_t blocks = divide_up(product.rows, BLOCK), depths = divide_up(product.depth, LANES);
    Buffer<float> all = allocate<float>(blocks * product.depth * BLOCK);
    backend.parallel_for(blocks * depths, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
            const int64_t block = task / depths, depth = task % depths * LANES;
            for (int64_t vector = 0; vector < VECTORS; ++vector) {
                const int64_t row = block * BLOCK + vector * LANES;
                const int64_t rows = std::clamp<int64_t>(product.rows - row, 0, LANES);
                const float *from = rows > 0 ? product.left + row * product.depth + depth : product.left;
                turn(from, product.depth, rows, std::min(LANES, product.depth - depth),
                     &all[(block * product.depth + depth) * BLOCK + vector * LANES], BLOCK, LANES);
            }
        }
    });
    return all;
}

// Adds up `depth` products for COUNT columns and 16 ROWS rows; `sums`: [COUNT][BLOCK].
template <int COUNT, int ROWS>
RINGTUNE_WIDE inline void add_products(const Right &right, const float *left, int64_t column_at, int64_t depth, bool first,
                                       float *sums) {
    __m512 all[COUNT][ROWS];
#pragma GCC unroll 4
    for (int column = 0; column < COUNT; ++column) {
#pragma GCC unroll 5
        for (int vector = 0; vector < ROWS; ++vector) {
            all[column][vector] = first ? _mm512_setzero_ps() : _mm512_load_ps(sums + column * BLOCK + vector * LANES);
        }
    }
    const float *from = right.values + column_at * right.column;
    for (int64_t at = 0; at < depth; ++at) {
        __m512 rows[ROWS];
#pragma GCC unroll 5
        for (int vector = 0; vector < ROWS; ++vector) {
            rows[vector] = _mm512_load_ps(left + at * BLOCK + vector * LANES);
        }
#pragma GCC unroll 4
        for (int column = 0; column < COUNT; ++column) {
            const __m512 value = _mm512_set1_ps(from[column * right.column + at * right.depth]);
#pragma GCC unroll 5
            for (int vector = 0; vector < ROWS; ++vector) {
                all[column][vector] = _mm512_fmadd_ps(value, rows[vector], all[column][vector]);
            }
        }
    }
#pragma GCC unroll 4
    for (int column = 0; column < COUNT; ++column) {
#pragma GCC unroll 5
        for (int vector = 0; vector < ROWS; ++vector) {
            _mm512_store_ps(sums + column * BLOCK + vector * LANES, all[column][vector]);
        }
    }
}

template <int COUNT>
RINGTUNE_WIDE void add_products_of(int64_t vectors, const Right &right, const float *left, int64_t column, int64_t depth,
                                   bool first, float *sums) {
    switch (vectors) {
    case 1: return add_products<COUNT, 1>(right, left, column, depth, first, sums);
    case 2: return add_products<COUNT, 2>(right, left, column, depth, first, sums);
    case 3: return add_products<COUNT, 3>(right, left, column, depth, first, sums);
    case 4: return add_products<COUNT, 4>(right, left, column, depth, first, sums);
    default: return add_products<COUNT, 5>(right, left, column, depth, first, sums);
    }
}

// Asks for a strip's weights of a stretch, if there is one, line by line as they lie.
void fetch(const Product &product, int64_t column, int64_t columns, int64_t depth) {
    if (depth >= product.depth) {
        return;
    }
    const auto [values, column_step, depth_step] = product.right;
    const int64_t depths = std::min(product.depth - depth, STRETCH);
    const bool along = depth_step == 1;
    const int64_t lines = along ? columns : depths, length = along ? depths : columns;
    const float *from = product.right.at(column, depth);
    for (int64_t line = 0; line < lines; ++line) {
        for (int64_t at = 0; at < length; at += LANES) {
            _mm_prefetch(from + line * (along ? column_step : depth_step) + at, _MM_HINT_T1);
        }
    }
}

// Columns [column, column + count) of a block of rows; `sums`: [STRIP][BLOCK].
RINGTUNE_WIDE void multiply_strip(const Product &product, const float *left, int64_t block, int64_t column, int64_t count,
                                  float *sums) {
    const int64_t rows = std::min(BLOCK, product.rows - block * BLOCK), vectors = divide_up(rows, LANES);
    left += block * product.depth * BLOCK;
    for (int64_t depth = 0; depth < product.depth; depth += STRETCH) {
        const int64_t some = std::min(STRETCH, product.depth - depth);
        const Right right{product.right.at(column, depth), product.right.column, product.right.depth};
        const float *by = left + depth * BLOCK;
        fetch(product, column, count, depth + STRETCH);
        int64_t at = 0;
        for (; at + COLUMNS <= count; at += COLUMNS) {
            add_products_of<COLUMNS>(vectors, right, by, at, some, depth == 0, sums + at * BLOCK);
        }
        for (; at < count; ++at) {
            add_products_of<1>(vectors, right, by, at, some, depth == 0, sums + at * BLOCK);
        }
    }
    for (int64_t at = 0; product.bias != nullptr && at < count; ++at) {
        const __m512 bias = _mm512_set1_ps(product.bias[column + at]);
        for (int64_t vector = 0; vector < vectors; ++vector) {
            float *place = sums + at * BLOCK + vector * LANES;
            _mm512_store_ps(place, _mm512_add_ps(_mm512_load_ps(place), bias));
        }
    }
    for (int64_t at = 0; at < count; at += LANES) {
        for (int64_t row = 0; row < rows; row += LANES) {
            turn(sums + at * BLOCK + row, BLOCK, std::min(LANES, count - at), std::min(LANES, rows - row),
                 product.result + (block * BLOCK + row) * product.columns + column + at, product.columns, count - at);
        }
    }
}

void run(const Backend &backend, const Product &product) {
    const Buffer<float> left = turned(backend, product);
    const int64_t strips = divide_up(product.columns, STRIP), blocks = divide_up(product.rows, BLOCK);
    backend.parallel_for(strips * blocks, [&](int64_t begin, int64_t end) {
        const Multiplying multiplying(backend);
        alignas(64) float sums[STRIP * BLOCK];
        for (int64_t task = begin; task < end; ++task) {
            // Blocks of rows one after the other, while the strip's weights are near.
            const int64_t column = task / blocks * STRIP;
            multiply_strip(product, &left[0], task % blocks, column, std::min(STRIP, product.columns - column), sums);
        }
    });
}

} // namespace

void multiply(const Backend &backend, const Sizes &sizes, const float *x, const float *weight, const float *bias,
              float *result) {
    run(backend, {sizes.rows, sizes.inputs, sizes.outputs, x, {weight, sizes.inputs, 1}, bias, result});
}

void multiply_back(const Backend &backend, const Sizes &sizes, const float *gradient, const float *weight, float *result) {
    run(backend, {sizes.rows, sizes.outputs, sizes.inputs, gradient, {weight, 1, sizes.inputs}, nullptr, result});
}

} // namespace ringtune::few_rows
