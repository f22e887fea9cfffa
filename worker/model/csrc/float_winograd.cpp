// Winograd's method for 3x3 kernels and tiles of 2x2 results, which take 4x4 inputs. With the points 0, 1, -1 and infinity, 16
// numbers of a tile, of each input, times 16 of a kernel, added up over the inputs, give the tile's results. Tiles reach over
// the picture's end, where inputs are zero and results are dropped.

#include "float_kernels.h"
#include "task_cuts.h"

namespace ringtune::floats {

namespace {

constexpr int64_t SIDE = 2;
constexpr int64_t REACH = 4; // of a tile's inputs
constexpr int64_t POINTS = REACH * REACH;
constexpr int64_t PLACES = 9;
constexpr int64_t GAP = 16; // between points, so that 16 of them lie in different sets of the cache
// Inputs that are added up at once, outputs and tiles that go with them: transformed, they fill a core's larger cache together.
constexpr int64_t DEPTH = 64;
constexpr int64_t GROUP = 2 * STRIP;
constexpr int64_t MOST_TILES = 64;
// What transforming weights costs, in tiles.
constexpr int64_t WEIGHTS_COST = 4;

// A piece of the weights, transformed: [POINTS][strips][DEPTH][16].
constexpr int64_t WEIGHTS_STRIP = DEPTH * STRIP;
constexpr int64_t WEIGHTS_POINT = DEPTH * GROUP + GAP;

// One dimension of a tile's inputs.
RINGTUNE_AVX2 inline void transform_inputs(const __m256 (&x)[REACH], __m256 (&y)[REACH]) {
    y[0] = _mm256_sub_ps(x[0], x[2]);
    y[1] = _mm256_add_ps(x[1], x[2]);
    y[2] = _mm256_sub_ps(x[2], x[1]);
    y[3] = _mm256_sub_ps(x[1], x[3]);
}

// One dimension of a kernel.
RINGTUNE_AVX2 inline void transform_weights(__m256 first, __m256 second, __m256 third, __m256 (&y)[REACH]) {
    const __m256 half = _mm256_set1_ps(0.5f);
    const __m256 both = _mm256_mul_ps(half, _mm256_add_ps(first, third)), middle = _mm256_mul_ps(half, second);
    y[0] = first;
    y[1] = _mm256_add_ps(both, middle);
    y[2] = _mm256_sub_ps(both, middle);
    y[3] = third;
}

// One dimension of sums.
RINGTUNE_AVX2 inline void transform_sums(const __m256 (&x)[REACH], __m256 (&y)[SIDE]) {
    y[0] = _mm256_add_ps(x[0], _mm256_add_ps(x[1], x[2]));
    y[1] = _mm256_sub_ps(_mm256_sub_ps(x[1], x[2]), x[3]);
}

using Tiles = cuts::Tiles<SIDE>;

// Where a block's transformed inputs lie: [inputs / DEPTH][POINTS][tiles][DEPTH].
struct Inputs {
    int64_t point, piece, block;

    Inputs(const Channels &channels, int64_t tiles)
        : point(tiles * DEPTH + GAP), piece(POINTS * point), block(divide_up(channels.inputs, DEPTH) * piece) {}
};

// What all tasks of a convolution share.
struct Convolution {
    Channels channels;
    Way way;
    Tiles tiles;
    Operands operands;
    Inputs inputs;
};

// `to`: a tile of a block.
RINGTUNE_AVX2 void transform_tile(const Convolution &convolution, int64_t tile, const float *zeros, float *to) {
    const int64_t count = convolution.channels.inputs;
    const Inputs &inputs = convolution.inputs;
    const float *pixels[POINTS];
    for (int64_t at = 0; at < POINTS; ++at) {
        const int64_t pixel = convolution.tiles.pixel(tile, at / REACH - 1, at % REACH - 1);
        pixels[at] = pixel < 0 ? zeros : convolution.operands.x + pixel * count;
    }
    for (int64_t input = 0; input < count; input += EIGHT) {
        __m256 columns[REACH][REACH];
#pragma GCC unroll 4
        for (int64_t column = 0; column < REACH; ++column) {
            __m256 values[REACH];
#pragma GCC unroll 4
            for (int64_t row = 0; row < REACH; ++row) {
                values[row] = _mm256_loadu_ps(pixels[row * REACH + column] + input);
            }
            transform_inputs(values, columns[column]);
        }
        float *piece = to + input / DEPTH * inputs.piece + input % DEPTH;
#pragma GCC unroll 4
        for (int64_t row = 0; row < REACH; ++row) {
            __m256 values[REACH], points[REACH];
#pragma GCC unroll 4
            for (int64_t column = 0; column < REACH; ++column) {
                values[column] = columns[column][row];
            }
            transform_inputs(values, points);
#pragma GCC unroll 4
            for (int64_t column = 0; column < REACH; ++column) {
                _mm256_store_ps(piece + (row * REACH + column) * inputs.point, points[column]);
            }
        }
    }
}

// Eight kernels. `from`: their first places; `next`: from place to place.
RINGTUNE_AVX2 inline void transform_kernels(const float *from, int64_t next, __m256 (&points)[POINTS]) {
    __m256 columns[3][REACH];
#pragma GCC unroll 3
    for (int64_t column = 0; column < 3; ++column) {
        const auto place = [&](int64_t row) RINGTUNE_AVX2 { return _mm256_loadu_ps(from + (row * 3 + column) * next); };
        transform_weights(place(0), place(1), place(2), columns[column]);
    }
#pragma GCC unroll 4
    for (int64_t row = 0; row < REACH; ++row) {
        __m256 values[REACH];
        transform_weights(columns[0][row], columns[1][row], columns[2][row], values);
#pragma GCC unroll 4
        for (int64_t column = 0; column < REACH; ++column) {
            points[row * REACH + column] = values[column];
        }
    }
}

// On the way back: weights of an input lie beside each other. `to`: the first of them, of a strip.
RINGTUNE_AVX2 void transform_across(const float *from, int64_t next, float *to) {
    __m256 points[POINTS];
    transform_kernels(from, next, points);
#pragma GCC unroll 16
    for (int64_t point = 0; point < POINTS; ++point) {
        _mm256_store_ps(to + point * WEIGHTS_POINT, points[point]);
    }
}

// On the way forward: those of an output do. Of eight inputs and eight outputs.
RINGTUNE_AVX2 void transform_and_turn(const float *from, int64_t next, float *to) {
    __m256 all[POINTS][EIGHT];
    for (int64_t output = 0; output < EIGHT; ++output) {
        __m256 points[POINTS];
        transform_kernels(from + output * PLACES * next, next, points);
#pragma GCC unroll 16
        for (int64_t point = 0; point < POINTS; ++point) {
            all[point][output] = points[point];
        }
    }
    for (int64_t point = 0; point < POINTS; ++point) {
        transpose(all[point]);
#pragma GCC unroll 8
        for (int64_t input = 0; input < EIGHT; ++input) {
            _mm256_store_ps(to + point * WEIGHTS_POINT + input * STRIP, all[point][input]);
        }
    }
}

// The weights of `depth` inputs from `first` on and of eight outputs. `to`: the first of them, of a strip.
void transform_piece(const Convolution &convolution, int64_t first, int64_t depth, int64_t output, float *to) {
    const auto [inputs, outputs] = convolution.channels;
    const float *weights = convolution.operands.weights;
    if (convolution.way == Way::Backward) {
        for (int64_t input = 0; input < depth; ++input) {
            const float *last = weights + ((first + input) * PLACES + PLACES - 1) * outputs + output;
            transform_across(last, -outputs, to + input * STRIP);
        }
        return;
    }
    for (int64_t input = 0; input < depth; input += EIGHT) {
        transform_and_turn(weights + output * PLACES * inputs + first + input, inputs, to + input * STRIP);
    }
}

// `sums`: eight outputs of a tile from `output` on, a point `sums_point` behind the other.
RINGTUNE_AVX2 void finish_tile(const Convolution &convolution, const float *sums, int64_t sums_point, int64_t tile,
                               int64_t output) {
    const Operands &operands = convolution.operands;
    __m256 columns[REACH][SIDE];
#pragma GCC unroll 4
    for (int64_t column = 0; column < REACH; ++column) {
        __m256 values[REACH];
#pragma GCC unroll 4
        for (int64_t row = 0; row < REACH; ++row) {
            values[row] = _mm256_load_ps(sums + (row * REACH + column) * sums_point);
        }
        transform_sums(values, columns[column]);
    }
    const __m256 bias = operands.bias == nullptr ? _mm256_setzero_ps() : _mm256_loadu_ps(operands.bias + output);
    for (int64_t row = 0; row < SIDE; ++row) {
        __m256 values[REACH], results[SIDE];
#pragma GCC unroll 4
        for (int64_t column = 0; column < REACH; ++column) {
            values[column] = columns[column][row];
        }
        transform_sums(values, results);
#pragma GCC unroll 2
        for (int64_t column = 0; column < SIDE; ++column) {
            const int64_t pixel = convolution.tiles.pixel(tile, row, column);
            if (pixel < 0) {
                continue;
            }
            const int64_t at = pixel * convolution.channels.outputs + output;
            __m256 value = _mm256_add_ps(results[column], bias);
            if (operands.residual != nullptr) {
                value = _mm256_add_ps(value, _mm256_loadu_ps(operands.residual + at));
            }
            _mm256_storeu_ps(operands.result + at, value);
        }
    }
}

// A block's tiles [first, first + count) and a group of outputs.
struct Task {
    int64_t first, count, output;
    const float *inputs;
};

// `weights` and `sums`: room for a piece of a group, and for MOST_TILES tiles of it.
void multiply_task(const Convolution &convolution, const Task &task, float *weights, float *sums) {
    const auto [inputs, outputs] = convolution.channels;
    const int64_t width = std::min(GROUP, outputs - task.output), sums_point = task.count * width + GAP;
    for (int64_t input = 0; input < inputs; input += DEPTH) {
        const int64_t depth = std::min(DEPTH, inputs - input);
        for (int64_t at = 0; at < width; at += EIGHT) {
            transform_piece(convolution, input, depth, task.output + at, weights + at / STRIP * WEIGHTS_STRIP + at % STRIP);
        }
        const float *tiles = task.inputs + input / DEPTH * convolution.inputs.piece;
        for (int64_t point = 0; point < POINTS; ++point) {
            for (int64_t strip = 0; strip < width / STRIP; ++strip) {
                multiply_strip(task.count, {tiles + point * convolution.inputs.point, DEPTH},
                               {weights + point * WEIGHTS_POINT + strip * WEIGHTS_STRIP, STRIP}, depth, input == 0,
                               {sums + point * sums_point + strip * STRIP, width}, nullptr);
            }
        }
    }
    for (int64_t tile = 0; tile < task.count; ++tile) {
        for (int64_t at = 0; at < width; at += EIGHT) {
            finish_tile(convolution, sums + tile * width + at, sums_point, task.first + tile, task.output + at);
        }
    }
}

} // namespace

void convolve(const Runner &runner, const Channels &channels, Way way, const Pictures &pictures, const Operands &operands) {
    const Tiles tiles(pictures);
    const int64_t count = tiles.count(), groups = divide_up(channels.outputs, GROUP);
    const cuts::Blocks cut = cuts::blocks_of(count, groups, runner.threads, {MOST_TILES, ROWS, WEIGHTS_COST});
    const Convolution convolution{channels, way, tiles, operands, Inputs(channels, cut.tiles)};
    const int64_t block_elements = convolution.inputs.block;
    const Buffer<float> zeros = allocate<float>(channels.inputs);
    std::fill_n(&zeros[0], channels.inputs, 0.0f);
    const Buffer<float> transformed = allocate<float>(cut.blocks * block_elements);
    for (int64_t first = 0; first < count; first += cut.blocks * cut.tiles) {
        const int64_t end = std::min(first + cut.blocks * cut.tiles, count);
        runner.backend.parallel_for(end - first, [&](int64_t from, int64_t to) {
            const Multiplying multiplying(runner.backend);
            for (int64_t tile = from; tile < to; ++tile) {
                float *place = &transformed[tile / cut.tiles * block_elements + tile % cut.tiles * DEPTH];
                transform_tile(convolution, first + tile, &zeros[0], place);
            }
        });
        runner.backend.parallel_for(divide_up(end - first, cut.tiles) * groups, [&](int64_t from, int64_t to) {
            const Multiplying multiplying(runner.backend);
            const Buffer<float> weights = allocate<float>(POINTS * WEIGHTS_POINT);
            const Buffer<float> sums = allocate<float>(POINTS * (cut.tiles * GROUP + GAP));
            for (int64_t at = from; at < to; ++at) {
                const int64_t block = at / groups, tile = first + block * cut.tiles;
                const Task task{tile, std::min(cut.tiles, end - tile), at % groups * GROUP,
                                &transformed[block * block_elements]};
                multiply_task(convolution, task, &weights[0], &sums[0]);
            }
        });
    }
}

} // namespace ringtune::floats
