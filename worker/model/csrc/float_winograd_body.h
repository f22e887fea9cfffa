// Winograd's method for 3x3 kernels and tiles of 4x4 results, which take 6x6 inputs: 36 numbers of a tile, of each input, times
// 36 of a kernel, added up over the inputs, give the tile's results. Tiles reach over the picture's end, where inputs are zero
// and results are dropped.
//
// The points are 0, 5/8, -5/8, 3/2, -3/2 and infinity. With 1 and 2, which are usual, results err twice as much: powers of these
// lie nearer to 1 (Barabasz et al. 2020 on how to choose). Their squares and products are exact.
//
// Weights are transformed a piece and a row of points at a time, right before the products, so that they stay in a core's
// nearest cache.

namespace {

constexpr int64_t SIDE = 4;
constexpr int64_t REACH = 6; // of a tile's inputs
constexpr int64_t POINTS = REACH * REACH;
constexpr int64_t PLACES = 9;
// Inputs that are added up at once.
constexpr int64_t DEPTH = 64;
// Tiles that meet transformed weights: more would not fit a core's larger cache.
constexpr int64_t MOST_TILES = 64;
// What transforming weights costs, in tiles.
constexpr int64_t WEIGHTS_COST = 8;
constexpr int64_t GAP = 16; // between points, so that they lie in different sets of the cache

constexpr float NEAR = 0.625f, NEAR2 = NEAR * NEAR;
constexpr float FAR = 1.5f, FAR2 = FAR * FAR;

// One dimension of a tile's inputs.
RINGTUNE_TARGET inline void transform_inputs(const Vector (&x)[REACH], Vector (&y)[REACH]) {
    const Vector near = all(NEAR), near2 = all(NEAR2), far = all(FAR), far2 = all(FAR2);
    const Vector sum = all(NEAR2 + FAR2), product = all(NEAR2 * FAR2);
    y[0] = times_plus(product, x[0], minus_times(sum, x[2], x[4]));
    const Vector even = minus_times(far2, x[2], x[4]), odd = minus_times(far2, x[1], x[3]);
    y[1] = times_plus(near, odd, even);
    y[2] = minus_times(near, odd, even);
    const Vector far_even = minus_times(near2, x[2], x[4]), far_odd = minus_times(near2, x[1], x[3]);
    y[3] = times_plus(far, far_odd, far_even);
    y[4] = minus_times(far, far_odd, far_even);
    y[5] = times_plus(product, x[1], minus_times(sum, x[3], x[5]));
}

// One dimension of a kernel, but for the points' factors, which are on the sums: weights are transformed more often.
RINGTUNE_TARGET inline void transform_weights(Vector first, Vector second, Vector third, Vector (&y)[REACH]) {
    const Vector near = all(NEAR), far = all(FAR);
    const Vector even = times_plus(all(NEAR2), third, first);
    const Vector far_even = times_plus(all(FAR2), third, first);
    y[0] = first;
    y[1] = times_plus(near, second, even);
    y[2] = minus_times(near, second, even);
    y[3] = times_plus(far, second, far_even);
    y[4] = minus_times(far, second, far_even);
    y[5] = third;
}

// One dimension of sums, with the points' factors: 1 over the product of a point's distances to the others.
RINGTUNE_TARGET inline void transform_sums(const Vector (&x)[REACH], Vector (&y)[SIDE]) {
    constexpr float AT_0 = 1 / (NEAR2 * FAR2);
    constexpr float AT_NEAR = 1 / (2 * NEAR2 * (NEAR2 - FAR2)), AT_FAR = 1 / (2 * FAR2 * (FAR2 - NEAR2));
    const auto set = [](float factor) RINGTUNE_TARGET { return all(factor); };
    const Vector even = plus(x[1], x[2]), odd = minus(x[1], x[2]);
    const Vector far_even = plus(x[3], x[4]), far_odd = minus(x[3], x[4]);
    y[0] = times_plus(set(AT_0), x[0], times_plus(set(AT_NEAR), even, times(set(AT_FAR), far_even)));
    y[1] = times_plus(set(AT_NEAR * NEAR), odd, times(set(AT_FAR * FAR), far_odd));
    y[2] = times_plus(set(AT_NEAR * NEAR2), even, times(set(AT_FAR * FAR2), far_even));
    y[3] = times_plus(set(AT_NEAR * NEAR2 * NEAR), odd, times_plus(set(AT_FAR * FAR2 * FAR), far_odd, x[5]));
}

using Tiles = cuts::Tiles<SIDE>;

// What a thread works in: a piece of the weights of a strip of outputs, as it is, [DEPTH][9][STRIP], and at the points of one row,
// [REACH][DEPTH][STRIP]; and sums, [POINTS][tiles][STRIP].
struct Scratch {
    static constexpr int64_t POINT = DEPTH * STRIP + GAP;
    Buffer<float> kernels, points, sums;
    int64_t sums_point;

    explicit Scratch(int64_t tiles)
        : kernels(allocate<float>(DEPTH * PLACES * STRIP)), points(allocate<float>(REACH * POINT)),
          sums(allocate<float>(POINTS * (tiles * STRIP + GAP))), sums_point(tiles * STRIP + GAP) {}
};

// Where a block's transformed inputs lie: [inputs / DEPTH][POINTS][tiles][DEPTH].
struct Inputs {
    int64_t point, piece, block;

    Inputs(const Channels &channels, int64_t tiles)
        : point(tiles * DEPTH + GAP), piece(POINTS * point),
          block(divide_up(channels.inputs, DEPTH) * piece) {}
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
RINGTUNE_TARGET void transform_tile(const Convolution &convolution, int64_t tile, const float *zeros, float *to) {
    const int64_t count = convolution.channels.inputs;
    const Inputs &inputs = convolution.inputs;
    const float *pixels[POINTS];
    for (int64_t at = 0; at < POINTS; ++at) {
        const int64_t pixel = convolution.tiles.pixel(tile, at / REACH - 1, at % REACH - 1);
        pixels[at] = pixel < 0 ? zeros : convolution.operands.x + pixel * count;
    }
    for (int64_t input = 0; input < count; input += LANES) {
        Vector columns[REACH][REACH];
#pragma GCC unroll 6
        for (int64_t column = 0; column < REACH; ++column) {
            Vector values[REACH];
#pragma GCC unroll 6
            for (int64_t row = 0; row < REACH; ++row) {
                values[row] = load(pixels[row * REACH + column] + input);
            }
            transform_inputs(values, columns[column]);
        }
        float *piece = to + input / DEPTH * inputs.piece + input % DEPTH;
#pragma GCC unroll 6
        for (int64_t row = 0; row < REACH; ++row) {
            Vector values[REACH], points[REACH];
#pragma GCC unroll 6
            for (int64_t column = 0; column < REACH; ++column) {
                values[column] = columns[column][row];
            }
            transform_inputs(values, points);
#pragma GCC unroll 6
            for (int64_t column = 0; column < REACH; ++column) {
                store(piece + (row * REACH + column) * inputs.point, points[column]);
            }
        }
    }
}

// The weights of `depth` inputs from `first` on and of a strip of outputs, [STRIP][depth][9] in the layer's order: [depth][9][STRIP].
RINGTUNE_TARGET void gather_forward(const Convolution &convolution, int64_t first, int64_t depth, int64_t output, float *to) {
    const int64_t line = convolution.channels.inputs * PLACES;
    for (int64_t half = 0; half < STRIP; half += EIGHT) {
        const float *from = convolution.operands.weights + (output + half) * line + first * PLACES;
        for (int64_t at = 0; at < depth * PLACES; at += EIGHT) {
            __m256 all[EIGHT];
#pragma GCC unroll 8
            for (int64_t row = 0; row < EIGHT; ++row) {
                all[row] = _mm256_loadu_ps(from + row * line + at);
            }
            transpose(all);
#pragma GCC unroll 8
            for (int64_t row = 0; row < EIGHT; ++row) {
                _mm256_store_ps(to + (at + row) * STRIP + half, all[row]);
            }
        }
    }
}

// The same on the way back, [depth][STRIP][9] in the layer's order: its places are taken from the last to the first.
RINGTUNE_TARGET void gather_backward(const Convolution &convolution, int64_t first, int64_t depth, int64_t output, float *to) {
    const __m256i ninths = _mm256_setr_epi32(0, 9, 18, 27, 36, 45, 54, 63);
    for (int64_t input = 0; input < depth; ++input) {
        const float *from = convolution.operands.weights + ((first + input) * convolution.channels.outputs + output) * PLACES;
        float *lines = to + input * PLACES * STRIP;
        for (int64_t half = 0; half < STRIP; half += EIGHT, from += EIGHT * PLACES) {
            __m256 all[EIGHT];
#pragma GCC unroll 8
            for (int64_t row = 0; row < EIGHT; ++row) {
                all[row] = _mm256_loadu_ps(from + row * PLACES + 1);
            }
            transpose(all);
#pragma GCC unroll 8
            for (int64_t row = 0; row < EIGHT; ++row) {
                _mm256_store_ps(lines + (EIGHT - 1 - row) * STRIP + half, all[row]);
            }
            _mm256_store_ps(lines + EIGHT * STRIP + half, _mm256_i32gather_ps(from, ninths, sizeof(float)));
        }
    }
}

// At the points of one row: [REACH][depth][STRIP].
template <int64_t ROW> RINGTUNE_TARGET void transform_kernels(const float *kernels, int64_t depth, float *to) {
    for (int64_t at = 0; at < depth * STRIP; at += LANES) {
        const float *from = kernels + at / STRIP * PLACES * STRIP + at % STRIP;
        Vector columns[3], points[REACH];
#pragma GCC unroll 3
        for (int64_t column = 0; column < 3; ++column) {
            const auto place = [&](int64_t row) RINGTUNE_TARGET { return load(from + (row * 3 + column) * STRIP); };
            transform_weights(place(0), place(1), place(2), points);
            columns[column] = points[ROW];
        }
        transform_weights(columns[0], columns[1], columns[2], points);
#pragma GCC unroll 6
        for (int64_t column = 0; column < REACH; ++column) {
            store(to + column * Scratch::POINT + at, points[column]);
        }
    }
}

// `sums`: LANES outputs of a tile from `output` on, a point `sums_point` behind the other.
RINGTUNE_TARGET void finish_tile(const Convolution &convolution, const float *sums, int64_t sums_point, int64_t tile,
                                 int64_t output) {
    const Operands &operands = convolution.operands;
    Vector columns[REACH][SIDE];
#pragma GCC unroll 6
    for (int64_t column = 0; column < REACH; ++column) {
        Vector values[REACH];
#pragma GCC unroll 6
        for (int64_t row = 0; row < REACH; ++row) {
            values[row] = load(sums + (row * REACH + column) * sums_point);
        }
        transform_sums(values, columns[column]);
    }
    const Vector bias = operands.bias == nullptr ? zero() : load(operands.bias + output);
    for (int64_t row = 0; row < SIDE; ++row) {
        Vector values[REACH], results[SIDE];
#pragma GCC unroll 6
        for (int64_t column = 0; column < REACH; ++column) {
            values[column] = columns[column][row];
        }
        transform_sums(values, results);
#pragma GCC unroll 4
        for (int64_t column = 0; column < SIDE; ++column) {
            const int64_t pixel = convolution.tiles.pixel(tile, row, column);
            if (pixel < 0) {
                continue;
            }
            const int64_t at = pixel * convolution.channels.outputs + output;
            Vector value = plus(results[column], bias);
            if (operands.residual != nullptr) {
                value = plus(value, load(operands.residual + at));
            }
            store(operands.result + at, value);
        }
    }
}

// A block's tiles [first, first + count) and a strip of outputs.
struct Task {
    int64_t first, count, output;
    const float *inputs;
};

// Adds the products of a piece of the inputs at the points of one row, and of the rows behind.
template <int64_t ROW = 0>
void multiply_rows(const float *tiles, int64_t point, int64_t count, int64_t depth, bool first, Scratch &scratch) {
    if constexpr (ROW < REACH) {
        transform_kernels<ROW>(&scratch.kernels[0], depth, &scratch.points[0]);
        for (int64_t column = 0; column < REACH; ++column) {
            const int64_t at = ROW * REACH + column;
            multiply_strip(count, {tiles + at * point, DEPTH}, {&scratch.points[column * Scratch::POINT], STRIP},
                           depth, first, {&scratch.sums[at * scratch.sums_point], STRIP}, nullptr);
        }
        multiply_rows<ROW + 1>(tiles, point, count, depth, first, scratch);
    }
}

void multiply_task(const Convolution &convolution, const Task &task, Scratch &scratch) {
    const int64_t inputs = convolution.channels.inputs;
    for (int64_t input = 0; input < inputs; input += DEPTH) {
        const int64_t depth = std::min(DEPTH, inputs - input);
        const auto gather = convolution.way == Way::Forward ? gather_forward : gather_backward;
        gather(convolution, input, depth, task.output, &scratch.kernels[0]);
        const float *tiles = task.inputs + input / DEPTH * convolution.inputs.piece;
        multiply_rows(tiles, convolution.inputs.point, task.count, depth, input == 0, scratch);
    }
    for (int64_t tile = 0; tile < task.count; ++tile) {
        for (int64_t at = 0; at < STRIP; at += LANES) {
            finish_tile(convolution, &scratch.sums[tile * STRIP + at], scratch.sums_point, task.first + tile, task.output + at);
        }
    }
}

} // namespace

void convolve(const Runner &runner, const Channels &channels, Way way, const Pictures &pictures, const Operands &operands) {
    const Tiles tiles(pictures);
    const int64_t count = tiles.count(), groups = channels.outputs / STRIP;
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
            Scratch scratch(cut.tiles);
            for (int64_t at = from; at < to; ++at) {
                const int64_t block = at / groups, tile = first + block * cut.tiles;
                const Task task{tile, std::min(cut.tiles, end - tile), at % groups * STRIP,
                                &transformed[block * block_elements]};
                multiply_task(convolution, task, scratch);
            }
        });
    }
}
