// Winograd's method for 3x3 kernels and tiles of 4x4 results, which take 6x6 inputs. With the points 0, 1, -1, 2, -2 and
// infinity, 36 numbers of a tile, of each input, times 36 of a kernel, added up over the inputs, give the tile's results.
// Tiles reach over the picture's end, where inputs are zero and results are dropped.
//
// Weights are transformed a piece at a time, right before the products: kept, they would take eight times the memory.

#include "task_cuts.h"
#include "vector_kernels.h"

namespace ringtune::vectors {

namespace {

constexpr int64_t SIDE = 4;
constexpr int64_t REACH = 6; // of a tile's inputs
constexpr int64_t POINTS = REACH * REACH;
constexpr int64_t ROWS = 4; // tiles whose sums are in registers at once
constexpr int64_t GAP = LANES; // between points, so that 36 of them lie in different sets of the cache
// Tiles that meet transformed weights: more would not fit the cache.
constexpr int64_t MOST_TILES = 32;
// What transforming weights costs, in tiles.
constexpr int64_t WEIGHTS_COST = 4;

// One dimension of a tile's inputs.
RINGTUNE_AVX512 inline void transform_inputs(const __m512 (&x)[REACH], __m512 (&y)[REACH]) {
    const __m512 two = _mm512_set1_ps(2.0f), four = _mm512_set1_ps(4.0f), five = _mm512_set1_ps(5.0f);
    y[0] = _mm512_fmadd_ps(four, x[0], _mm512_fnmadd_ps(five, x[2], x[4]));
    const __m512 even = _mm512_fnmadd_ps(four, x[2], x[4]), odd = _mm512_fnmadd_ps(four, x[1], x[3]);
    y[1] = _mm512_add_ps(even, odd);
    y[2] = _mm512_sub_ps(even, odd);
    const __m512 near = _mm512_sub_ps(x[4], x[2]), far = _mm512_sub_ps(x[3], x[1]);
    y[3] = _mm512_fmadd_ps(two, far, near);
    y[4] = _mm512_fnmadd_ps(two, far, near);
    y[5] = _mm512_fmadd_ps(four, x[1], _mm512_fnmadd_ps(five, x[3], x[5]));
}

// One dimension of a kernel, but for the points' factors, 1/4, -1/6, -1/6, 1/24, 1/24 and 1: weights are transformed more often
// than sums.
RINGTUNE_AVX512 inline void transform_weights(__m512 first, __m512 second, __m512 third, __m512 (&y)[REACH]) {
    const __m512 two = _mm512_set1_ps(2.0f), four = _mm512_set1_ps(4.0f);
    const __m512 near = _mm512_add_ps(first, third), far = _mm512_fmadd_ps(four, third, first);
    y[0] = first;
    y[1] = _mm512_add_ps(near, second);
    y[2] = _mm512_sub_ps(near, second);
    y[3] = _mm512_fmadd_ps(two, second, far);
    y[4] = _mm512_fnmadd_ps(two, second, far);
    y[5] = third;
}

// One dimension of sums, with the points' factors.
RINGTUNE_AVX512 inline void transform_sums(const __m512 (&x)[REACH], __m512 (&y)[SIDE]) {
    const __m512 third = _mm512_set1_ps(1.0f / 3), quarter = _mm512_set1_ps(0.25f), sixth = _mm512_set1_ps(1.0f / 6);
    const __m512 twelfth = _mm512_set1_ps(1.0f / 12), last = _mm512_set1_ps(1.0f / 24);
    const __m512 near = _mm512_mul_ps(sixth, _mm512_add_ps(x[1], x[2])), far = _mm512_add_ps(x[3], x[4]);
    const __m512 near_odd = _mm512_mul_ps(sixth, _mm512_sub_ps(x[1], x[2])), far_odd = _mm512_sub_ps(x[3], x[4]);
    y[0] = _mm512_fmadd_ps(quarter, x[0], _mm512_fmsub_ps(last, far, near));
    y[1] = _mm512_fmsub_ps(twelfth, far_odd, near_odd);
    y[2] = _mm512_fmsub_ps(sixth, far, near);
    y[3] = _mm512_add_ps(_mm512_fmsub_ps(third, far_odd, near_odd), x[5]);
}

using Tiles = cuts::Tiles<SIDE>;

// Where a block's transformed inputs lie: [inputs / DEPTH][POINTS][tiles][DEPTH].
struct Inputs {
    int64_t point, piece, block;

    Inputs(const Layer &layer, int64_t tiles)
        : point(tiles * DEPTH + GAP), piece(POINTS * point), block(layer.inputs / DEPTH * piece) {}
};

// `to`: a tile of a block.
RINGTUNE_AVX512 void transform_tile(const Layer &layer, const Tiles &tiles, int64_t tile, const Bf16 *x, const Bf16 *zeros,
                                    const Inputs &inputs, float *to) {
    const Bf16 *pixels[POINTS];
    for (int64_t at = 0; at < POINTS; ++at) {
        const int64_t pixel = tiles.pixel(tile, at / REACH - 1, at % REACH - 1);
        pixels[at] = pixel < 0 ? zeros : x + pixel * layer.inputs;
    }
    for (int64_t input = 0; input < layer.inputs; input += LANES) {
        __m512 columns[REACH][REACH];
        for (int64_t column = 0; column < REACH; ++column) {
            __m512 values[REACH];
#pragma GCC unroll 6
            for (int64_t row = 0; row < REACH; ++row) {
                values[row] = widened(pixels[row * REACH + column] + input);
            }
            transform_inputs(values, columns[column]);
        }
        float *piece = to + input / DEPTH * inputs.piece + input % DEPTH;
        for (int64_t row = 0; row < REACH; ++row) {
            __m512 values[REACH], points[REACH];
#pragma GCC unroll 6
            for (int64_t column = 0; column < REACH; ++column) {
                values[column] = columns[column][row];
            }
            transform_inputs(values, points);
#pragma GCC unroll 6
            for (int64_t column = 0; column < REACH; ++column) {
                _mm512_store_ps(piece + (row * REACH + column) * inputs.point, points[column]);
            }
        }
    }
}

// Weights of VECTORS times 16 outputs and DEPTH inputs, transformed: [POINTS][DEPTH][VECTORS * 16].
template <int VECTORS> struct Weights {
    static constexpr int64_t OUTPUTS = VECTORS * LANES;
    static constexpr int64_t POINT = DEPTH * OUTPUTS + GAP;
};

// `from`: [9][16 outputs][2 inputs]; `odd`: the second of the two.
template <int VECTORS> RINGTUNE_AVX512 inline void transform_kernels(const Bf16 *from, bool odd, float *to) {
    const __m512i upper = _mm512_set1_epi32(int(0xffff0000));
    __m512 columns[3][REACH];
#pragma GCC unroll 3
    for (int64_t column = 0; column < 3; ++column) {
        __m512 values[3];
#pragma GCC unroll 3
        for (int64_t row = 0; row < 3; ++row) {
            const __m512i pairs = _mm512_loadu_si512(from + (row * 3 + column) * PAIRS);
            values[row] = _mm512_castsi512_ps(odd ? _mm512_and_si512(pairs, upper) : _mm512_slli_epi32(pairs, 16));
        }
        transform_weights(values[0], values[1], values[2], columns[column]);
    }
#pragma GCC unroll 6
    for (int64_t row = 0; row < REACH; ++row) {
        __m512 points[REACH];
        transform_weights(columns[0][row], columns[1][row], columns[2][row], points);
#pragma GCC unroll 6
        for (int64_t column = 0; column < REACH; ++column) {
            _mm512_store_ps(to + (row * REACH + column) * Weights<VECTORS>::POINT, points[column]);
        }
    }
}

// `packed`: of DEPTH inputs.
template <int VECTORS> RINGTUNE_AVX512 void transform_piece(const Bf16 *packed, float *weights) {
    for (int64_t input = 0; input < DEPTH; input += 2) {
        float *to = weights + input * Weights<VECTORS>::OUTPUTS;
        for (int64_t vector = 0; vector < VECTORS; ++vector) {
            transform_kernels<VECTORS>(packed, false, to + vector * LANES);
            transform_kernels<VECTORS>(packed, true, to + Weights<VECTORS>::OUTPUTS + vector * LANES);
            packed += PLACES * PAIRS;
        }
    }
}

// sums[COUNT][outputs] (+)= inputs[COUNT][DEPTH] weights[DEPTH][outputs], at one point.
template <int VECTORS, int COUNT>
RINGTUNE_AVX512 inline void multiply_rows(const float *inputs, const float *weights, float *sums, bool first) {
    constexpr int64_t OUTPUTS = Weights<VECTORS>::OUTPUTS;
    __m512 all[COUNT][VECTORS];
#pragma GCC unroll 4
    for (int row = 0; row < COUNT; ++row) {
#pragma GCC unroll 4
        for (int vector = 0; vector < VECTORS; ++vector) {
            all[row][vector] = first ? _mm512_setzero_ps() : _mm512_load_ps(sums + row * OUTPUTS + vector * LANES);
        }
    }
#pragma GCC unroll 2
    for (int64_t input = 0; input < DEPTH; ++input) {
        __m512 by[VECTORS];
#pragma GCC unroll 4
        for (int vector = 0; vector < VECTORS; ++vector) {
            by[vector] = _mm512_load_ps(weights + input * OUTPUTS + vector * LANES);
        }
#pragma GCC unroll 4
        for (int row = 0; row < COUNT; ++row) {
            const __m512 value = _mm512_set1_ps(inputs[row * DEPTH + input]);
#pragma GCC unroll 4
            for (int vector = 0; vector < VECTORS; ++vector) {
                all[row][vector] = _mm512_fmadd_ps(value, by[vector], all[row][vector]);
            }
        }
    }
#pragma GCC unroll 4
    for (int row = 0; row < COUNT; ++row) {
#pragma GCC unroll 4
        for (int vector = 0; vector < VECTORS; ++vector) {
            _mm512_store_ps(sums + row * OUTPUTS + vector * LANES, all[row][vector]);
        }
    }
}

template <int VECTORS>
RINGTUNE_AVX512 void multiply_piece(const float *inputs, int64_t inputs_point, const float *weights, float *sums,
                                    int64_t sums_point, int64_t tiles, bool first, const Ahead &ahead) {
    constexpr int64_t OUTPUTS = Weights<VECTORS>::OUTPUTS;
    for (int64_t point = 0; point < POINTS; ++point) {
        ahead.fetch(point, POINTS);
        int64_t tile = 0;
        for (; tile + ROWS <= tiles; tile += ROWS) {
            multiply_rows<VECTORS, ROWS>(inputs + tile * DEPTH, weights, sums + tile * OUTPUTS, first);
        }
        for (; tile < tiles; ++tile) {
            multiply_rows<VECTORS, 1>(inputs + tile * DEPTH, weights, sums + tile * OUTPUTS, first);
        }
        inputs += inputs_point;
        weights += Weights<VECTORS>::POINT;
        sums += sums_point;
    }
}

// `sums`: a tile's 16 outputs from `output` on, a point `sums_point` behind the other.
RINGTUNE_AVX512 void finish_tile(const float *sums, int64_t sums_point, const Layer &layer,
                                 const int64_t (&pixels)[SIDE * SIDE], const Operands &operands, int64_t output) {
    __m512 columns[REACH][SIDE];
    for (int64_t column = 0; column < REACH; ++column) {
        __m512 values[REACH];
#pragma GCC unroll 6
        for (int64_t row = 0; row < REACH; ++row) {
            values[row] = _mm512_load_ps(sums + (row * REACH + column) * sums_point);
        }
        transform_sums(values, columns[column]);
    }
    const __m512 bias = bias_of(operands, output);
    for (int64_t row = 0; row < SIDE; ++row) {
        __m512 values[REACH], results[SIDE];
#pragma GCC unroll 6
        for (int64_t column = 0; column < REACH; ++column) {
            values[column] = columns[column][row];
        }
        transform_sums(values, results);
#pragma GCC unroll 4
        for (int64_t column = 0; column < SIDE; ++column) {
            const int64_t pixel = pixels[row * SIDE + column];
            if (pixel >= 0) {
                finish(results[column], bias, operands, pixel * layer.outputs + output);
            }
        }
    }
}

// A block's tiles [first, first + count) and a group of outputs.
struct Task {
    int64_t first, count, output;
    const float *inputs;
};

// `sums` and `weights`: room for MOST_TILES tiles and a group.
template <int VECTORS>
void multiply_task(const Layer &layer, const Tiles &tiles, const Operands &operands, const Task &task,
                   const Inputs &inputs, float *weights, float *sums) {
    const int64_t point = task.count * Weights<VECTORS>::OUTPUTS + GAP;
    for (int64_t input = 0; input < layer.inputs; input += DEPTH) {
        transform_piece<VECTORS>(weights_of(layer, operands.weights, task.output, input), weights);
        const Ahead ahead(layer, operands.weights, task.output, input);
        multiply_piece<VECTORS>(task.inputs + input / DEPTH * inputs.piece, inputs.point, weights, sums, point, task.count,
                                input == 0, ahead);
    }
    for (int64_t tile = 0; tile < task.count; ++tile) {
        int64_t pixels[SIDE * SIDE];
        for (int64_t at = 0; at < SIDE * SIDE; ++at) {
            pixels[at] = tiles.pixel(task.first + tile, at / SIDE, at % SIDE);
        }
        for (int64_t vector = 0; vector < VECTORS; ++vector) {
            const int64_t at = vector * LANES;
            finish_tile(sums + tile * Weights<VECTORS>::OUTPUTS + at, point, layer, pixels, operands, task.output + at);
        }
    }
}

} // namespace

void convolve_by_winograd(const Runner &runner, const Layer &layer, const Pictures &pictures, const Operands &operands) {
    const Tiles tiles(pictures);
    const int64_t count = tiles.count(), groups = divide_up(layer.outputs, GROUP);
    const cuts::Blocks cut = cuts::blocks_of(count, groups, runner.threads, {MOST_TILES, ROWS, WEIGHTS_COST});
    const Inputs inputs(layer, cut.tiles);
    const Buffer<Bf16> zeros = allocate<Bf16>(layer.inputs);
    std::memset(&zeros[0], 0, layer.inputs * sizeof(Bf16));
    const Buffer<float> transformed = allocate<float>(cut.blocks * inputs.block);
    for (int64_t first = 0; first < count; first += cut.blocks * cut.tiles) {
        const int64_t end = std::min(first + cut.blocks * cut.tiles, count);
        runner.backend.parallel_for(end - first, [&](int64_t from, int64_t to) {
            const Multiplying multiplying(runner.backend);
            for (int64_t tile = from; tile < to; ++tile) {
                float *place = &transformed[tile / cut.tiles * inputs.block + tile % cut.tiles * DEPTH];
                transform_tile(layer, tiles, first + tile, operands.x, &zeros[0], inputs, place);
            }
        });
        runner.backend.parallel_for(divide_up(end - first, cut.tiles) * groups, [&](int64_t from, int64_t to) {
            const Multiplying multiplying(runner.backend);
            const Buffer<float> weights = allocate<float>(POINTS * Weights<GROUP / LANES>::POINT);
            const Buffer<float> sums = allocate<float>(POINTS * (cut.tiles * GROUP + GAP));
            for (int64_t at = from; at < to; ++at) {
                const int64_t block = at / groups, output = at % groups * GROUP, tile = first + block * cut.tiles;
                const Task task{tile, std::min(cut.tiles, end - tile), output, &transformed[block * inputs.block]};
                if (layer.outputs - output >= GROUP) {
                    multiply_task<4>(layer, tiles, operands, task, inputs, &weights[0], &sums[0]);
                } else {
                    multiply_task<2>(layer, tiles, operands, task, inputs, &weights[0], &sums[0]);
                }
            }
        });
    }
}

} // namespace ringtune::vectors
