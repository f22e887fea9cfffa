// The plain way, for pictures so small that their weights take most of the time: each weight is read once for all pixels.

#include "vector_kernels.h"

namespace ringtune::vectors {

namespace {

constexpr int64_t ROWS = 4; // pixels whose sums are in registers at once
constexpr int64_t MOST_PIXELS = 64; // that meet them
constexpr int64_t FEWEST_PIXELS = 16;

// Pictures between zeros, so that every place of the kernel is a distance in memory that all pixels share.
struct Framed {
    Buffer<Bf16> values;
    int64_t across;

    // Of the upper left of a pixel's nine places.
    int64_t place(const Layer &layer, const Pictures &pictures, int64_t pixel) const {
        const int64_t row = pixel / pictures.width, column = pixel % pictures.width;
        const int64_t line = row + row / pictures.height * 2;
        return (line * across + column) * layer.inputs;
    }
};

Framed framed(const Runner &runner, const Layer &layer, const Pictures &pictures, const Bf16 *x) {
    const auto [batches, height, width] = pictures;
    const int64_t inputs = layer.inputs, across = width + 2, down = height + 2;
    Framed all{allocate<Bf16>(batches * down * across * inputs), across};
    Bf16 *values = &all.values[0];
    runner.backend.parallel_for(batches * down, [&](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
            Bf16 *to = values + line * across * inputs;
            const int64_t row = line % down - 1;
            if (row < 0 || row == height) {
                std::memset(to, 0, across * inputs * sizeof(Bf16));
                continue;
            }
            std::memset(to, 0, inputs * sizeof(Bf16));
            std::memcpy(to + inputs, x + (line / down * height + row) * width * inputs, width * inputs * sizeof(Bf16));
            std::memset(to + (width + 1) * inputs, 0, inputs * sizeof(Bf16));
        }
    });
    return all;
}

// What the sums of some pixels and a group of outputs are made of: weights of DEPTH inputs, and the way from a pixel's first
// place to the others, in elements.
struct Piece {
    const Bf16 *weights;
    int64_t places[PLACES];
    bool first;
};

template <int VECTORS>
RINGTUNE_AVX512 inline void multiply_rows(const Piece &piece, const Bf16 *const (&pixels)[ROWS], float *sums) {
    __m512 all[ROWS][VECTORS];
#pragma GCC unroll 4
    for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 4
        for (int vector = 0; vector < VECTORS; ++vector) {
            all[row][vector] =
                piece.first ? _mm512_setzero_ps() : _mm512_load_ps(sums + (row * VECTORS + vector) * LANES);
        }
    }
    for (int64_t pair = 0; pair < DEPTH / 2; ++pair) {
        for (int64_t place = 0; place < PLACES; ++place) {
            __m512bh by[VECTORS];
#pragma GCC unroll 4
            for (int vector = 0; vector < VECTORS; ++vector) {
                const int64_t at = (pair * VECTORS + vector) * PLACES + place;
                by[vector] = (__m512bh)_mm512_loadu_si512(piece.weights + at * PAIRS);
            }
#pragma GCC unroll 4
            for (int row = 0; row < ROWS; ++row) {
                int two;
                std::memcpy(&two, pixels[row] + piece.places[place] + pair * 2, sizeof two);
                const __m512bh values = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 4
                for (int vector = 0; vector < VECTORS; ++vector) {
                    all[row][vector] = _mm512_dpbf16_ps(all[row][vector], values, by[vector]);
                }
            }
        }
    }
#pragma GCC unroll 4
    for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 4
        for (int vector = 0; vector < VECTORS; ++vector) {
            _mm512_store_ps(sums + (row * VECTORS + vector) * LANES, all[row][vector]);
        }
    }
}

// Pixels [first, first + count) and the outputs of a group; `sums`: room for them, rounded up to ROWS.
template <int VECTORS>
RINGTUNE_AVX512 void multiply_task(const Layer &layer, const Pictures &pictures, const Operands &operands, const Framed &x,
                                   int64_t first, int64_t count, int64_t output, float *sums) {
    Piece piece;
    for (int64_t place = 0; place < PLACES; ++place) {
        piece.places[place] = (place / 3 * x.across + place % 3) * layer.inputs;
    }
    for (int64_t input = 0; input < layer.inputs; input += DEPTH) {
        piece.first = input == 0;
        piece.weights = weights_of(layer, operands.weights, output, input);
        const Ahead ahead(layer, operands.weights, output, input);
        for (int64_t row = 0; row < count; row += ROWS) {
            ahead.fetch(row / ROWS, divide_up(count, ROWS));
            const Bf16 *pixels[ROWS];
            for (int64_t at = 0; at < ROWS; ++at) {
                const int64_t pixel = first + std::min(row + at, count - 1);
                pixels[at] = &x.values[x.place(layer, pictures, pixel) + input];
            }
            multiply_rows<VECTORS>(piece, pixels, sums + row * VECTORS * LANES);
        }
    }
    for (int64_t vector = 0; vector < VECTORS; ++vector) {
        const int64_t at = output + vector * LANES;
        const __m512 bias = bias_of(operands, at);
        for (int64_t row = 0; row < count; ++row) {
            const __m512 all = _mm512_load_ps(sums + (row * VECTORS + vector) * LANES);
            finish(all, bias, operands, (first + row) * layer.outputs + at);
        }
    }
}

} // namespace

void convolve_directly(const Runner &runner, const Layer &layer, const Pictures &pictures, const Operands &operands) {
    const Framed x = framed(runner, layer, pictures, operands.x);
    const int64_t pixels = pictures.batches * pictures.height * pictures.width, groups = divide_up(layer.outputs, GROUP);
    int64_t at_once = MOST_PIXELS;
    while (at_once > FEWEST_PIXELS && divide_up(pixels, at_once) * groups < runner.threads) {
        at_once /= 2;
    }
    runner.backend.parallel_for(divide_up(pixels, at_once) * groups, [&](int64_t from, int64_t to) {
        const Multiplying multiplying(runner.backend);
        alignas(64) float sums[MOST_PIXELS * GROUP];
        for (int64_t task = from; task < to; ++task) {
            const int64_t first = task / groups * at_once, output = task % groups * GROUP;
            const int64_t count = std::min(at_once, pixels - first);
            if (layer.outputs - output >= GROUP) {
                multiply_task<4>(layer, pictures, operands, x, first, count, output, sums);
            } else {
                multiply_task<2>(layer, pictures, operands, x, first, count, output, sums);
            }
        }
    });
}

} // namespace ringtune::vectors
