#include "split_linear.h"

#include "attention_tiles.h"

namespace ringtune::split {

namespace {

using flash::Backend;
using flash::Bf16;
using flash::divide_up;
using flash::LANES;
using flash::Multiplying;
using flash::tiles::DEPTH;
using flash::tiles::LINE;
using flash::tiles::SIDE;
using flash::tiles::SUMS;
using flash::tiles::VALUES;

// A tile of high halves, and behind it the one of low halves.
constexpr int64_t BOTH = 2 * VALUES;
// Tiles of tokens whose sums stay in registers while a weight is used: 80 tokens, and a prompt has 77.
constexpr int64_t GROUP = 5;
// Weights are split where they are used, from where they lie: halves that were kept would take their memory again. They
// come from far away, so that they are asked for so many steps, of 16 outputs and 32 inputs, before their turn.
constexpr int64_t AHEAD = 8;
// The way back takes a stretch of weights' rows for several tiles of inputs side by side, which makes it read 512 bytes of a
// row together; the sums of each are loaded and stored once for a stretch, of so many steps.
constexpr int64_t STRIPS = 8;
constexpr int64_t STRETCH = 4;

RINGTUNE_AVX512 inline __mmask16 lanes_before(int64_t column, int64_t end) {
    return __mmask16((1u << std::clamp<int64_t>(end - column, 0, LANES)) - 1);
}

RINGTUNE_AVX512 inline __m512 load(const float *row, int64_t column, int64_t end) {
    return end - column >= LANES ? _mm512_loadu_ps(row + column)
                                 : _mm512_maskz_loadu_ps(lanes_before(column, end), row + column);
}

// The halves of two vectors of values.
struct Halves {
    __m512i high, low;
};

RINGTUNE_AVX512 inline __m512 rest_of(__m512 values, __m256i high) {
    return _mm512_sub_ps(values, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16)));
}

RINGTUNE_AVX512 inline Halves split(__m512 first, __m512 second) {
    const __m512i high = flash::to_bf16(first, second);
    const __m512 first_rest = rest_of(first, _mm512_castsi512_si256(high));
    return {high, flash::to_bf16(first_rest, rest_of(second, _mm512_extracti64x4_epi64(high, 1)))};
}

// Floats, row by row.
struct Matrix {
    const float *values;
    int64_t rows, columns;

    const float *row(int64_t index) const { return values + index * columns; }
    // Where the values of a row end: those past the last row are zero.
    int64_t end(int64_t index) const { return index < rows ? columns : 0; }
};

// What an operand is in a product.
enum class Side { Left, Right };

// A tile of high and one of low halves, made of 16 rows and 32 columns (left), or of 32 rows, over which products add up, and
// 16 columns (right). What lies past the matrix's ends is zero.
struct Tile {
    const Matrix *matrix;
    int64_t row, column;
    Bf16 *halves;

    // One of the 16 rows of both tiles.
    template <Side side> [[gnu::always_inline]] RINGTUNE_AVX512 inline void make_row(int64_t each) const {
        Halves made;
        if constexpr (side == Side::Left) {
            const int64_t own = row + each, end = matrix->end(own);
            const float *values = matrix->row(own);
            made = split(load(values, column, end), load(values, column + LANES, end));
        } else {
            const int64_t own = row + each * 2;
            made = split(load(matrix->row(own), column, matrix->end(own)),
                         load(matrix->row(own + 1), column, matrix->end(own + 1)));
            made = {flash::paired(made.high), flash::paired(made.low)};
        }
        _mm512_store_si512(halves + each * DEPTH, made.high);
        _mm512_store_si512(halves + VALUES + each * DEPTH, made.low);
    }

    template <Side side> [[gnu::always_inline]] RINGTUNE_AVX512 inline void make_rows(int64_t from, int64_t end) const {
        for (int64_t each = from; each < end; ++each) {
            make_row<side>(each);
        }
    }
};

RINGTUNE_AVX512 inline void turn(Bf16 *tile) {
    __m512i rows[SIDE];
    for (int64_t row = 0; row < SIDE; ++row) {
        rows[row] = _mm512_load_si512(tile + row * DEPTH);
    }
    flash::tiles::transpose(rows);
    for (int64_t row = 0; row < SIDE; ++row) {
        _mm512_store_si512(tile + row * DEPTH, rows[row]);
    }
}

// Tokens' halves, tile by tile in the order of use: [groups][steps of 32 values][GROUP][high and low].
struct Tokens {
    int64_t rows, steps;
    Buffer<Bf16> tiles;

    int64_t groups() const { return divide_up(rows, GROUP * SIDE); }
    int64_t first(int64_t group) const { return group * GROUP * SIDE; }
    int64_t count(int64_t group) const { return std::min(GROUP * SIDE, rows - first(group)); }
    const Bf16 *at(int64_t group, int64_t step) const { return &tiles[(group * steps + step) * GROUP * BOTH]; }
};

// One step's tiles of a group.
RINGTUNE_AVX512 void split_group(const Matrix &matrix, const Tokens &tokens, int64_t group, int64_t step, Side side) {
    Bf16 *halves = &tokens.tiles[(group * tokens.steps + step) * GROUP * BOTH];
    for (int64_t token = 0; token < tokens.count(group); token += SIDE, halves += BOTH) {
        Tile{&matrix, tokens.first(group) + token, step * DEPTH, halves}.make_rows<Side::Left>(0, SIDE);
        // Of tokens' columns a right operand wants pairs, of which 32 bits are one.
        if (side == Side::Right) {
            turn(halves);
            turn(halves + VALUES);
        }
    }
}

Tokens split_tokens(const Backend &backend, const Matrix &matrix, Side side) {
    Tokens tokens{matrix.rows, divide_up(matrix.columns, DEPTH), {}};
    tokens.tiles = allocate<Bf16>(tokens.groups() * tokens.steps * GROUP * BOTH);
    backend.parallel_for(tokens.groups() * tokens.steps, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
            split_group(matrix, tokens, task / tokens.steps, task % tokens.steps, side);
        }
    });
    return tokens;
}

// Tiles 0 to 4 are sums, one for each tile of tokens; 5 and 6 hold a weight's halves, 7 those of tokens in turns. The
// intrinsics take literal numbers only.
#define RINGTUNE_FOR_EACH_TILE(tiles, act)                                                                             \
    act(0);                                                                                                            \
    if ((tiles) > 1) {                                                                                                 \
        act(1);                                                                                                        \
    }                                                                                                                  \
    if ((tiles) > 2) {                                                                                                 \
        act(2);                                                                                                        \
    }                                                                                                                  \
    if ((tiles) > 3) {                                                                                                 \
        act(3);                                                                                                        \
    }                                                                                                                  \
    if ((tiles) > 4) {                                                                                                 \
        act(4);                                                                                                        \
    }

RINGTUNE_TILES inline void begin_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
}

RINGTUNE_TILES inline void load_sums(const float *sums, int64_t tiles) {
#define RINGTUNE_LOAD(tile) _tile_loadd(tile, sums + (tile) * SUMS, LINE)
    RINGTUNE_FOR_EACH_TILE(tiles, RINGTUNE_LOAD)
#undef RINGTUNE_LOAD
}

RINGTUNE_TILES inline void store_sums(float *sums, int64_t tiles) {
#define RINGTUNE_STORE(tile) _tile_stored(tile, sums + (tile) * SUMS, LINE)
    RINGTUNE_FOR_EACH_TILE(tiles, RINGTUNE_STORE)
#undef RINGTUNE_STORE
}

// One step: the three products of a weight, which stands on `side`, with tokens. The next step's weight, if there is one, is
// split meanwhile, a few rows after each tile of tokens: the processor does both at once if they lie that close together.
template <Side side>
RINGTUNE_TILES inline void add_products(const Bf16 *weight, const Bf16 *tokens, int64_t tiles, const Tile *next) {
    constexpr int64_t ROWS = 3; // after a tile: all of GROUP leave one
    flash::tiles::stores_before_tiles();
    _tile_loadd(5, weight, LINE);
    _tile_loadd(6, weight + VALUES, LINE);
#define RINGTUNE_MULTIPLY(tile)                                                                                        \
    _tile_loadd(7, tokens + (tile) * BOTH, LINE);                                                                      \
    if constexpr (side == Side::Left) {                                                                                \
        _tile_dpbf16ps(tile, 5, 7);                                                                                    \
        _tile_dpbf16ps(tile, 6, 7);                                                                                    \
        _tile_loadd(7, tokens + (tile) * BOTH + VALUES, LINE);                                                         \
        _tile_dpbf16ps(tile, 5, 7);                                                                                    \
    } else {                                                                                                           \
        _tile_dpbf16ps(tile, 7, 5);                                                                                    \
        _tile_dpbf16ps(tile, 7, 6);                                                                                    \
        _tile_loadd(7, tokens + (tile) * BOTH + VALUES, LINE);                                                         \
        _tile_dpbf16ps(tile, 7, 5);                                                                                    \
    }                                                                                                                  \
    if (next != nullptr) {                                                                                             \
        next->make_rows<side>((tile) * ROWS, ((tile) + 1) * ROWS);                                                     \
    }
    RINGTUNE_FOR_EACH_TILE(tiles, RINGTUNE_MULTIPLY)
#undef RINGTUNE_MULTIPLY
    if (next != nullptr) {
        next->make_rows<side>(tiles * ROWS, SIDE);
    }
}

// Asks for a rectangle of the weights, or for what there is of it. Inlined by force: GCC sees no effect in it, and would
// drop the calls.
[[gnu::always_inline]] RINGTUNE_AVX512 inline void fetch(const Matrix &weights, int64_t row, int64_t rows,
                                                         int64_t column, int64_t columns) {
    for (int64_t each = row; each < std::min(row + rows, weights.rows); ++each) {
        for (int64_t at = column; at < std::min(column + columns, weights.columns); at += LANES) {
            _mm_prefetch(weights.row(each) + at, _MM_HINT_T1);
        }
    }
}

// Of 16 outputs and a group of tokens: [tiles][16 outputs][16 tokens]. `scratch`: two steps' weights.
RINGTUNE_TILES void sum_outputs(const Matrix &weights, int64_t output, const Tokens &tokens, int64_t group,
                                Bf16 *scratch, float *sums) {
    const int64_t steps = tokens.steps, tiles = divide_up(tokens.count(group), SIDE);
    const auto weight_of = [&](int64_t step) {
        return Tile{&weights, output, step * DEPTH, scratch + step % 2 * BOTH};
    };
    weight_of(0).make_rows<Side::Left>(0, SIDE);
    begin_sums();
    for (int64_t step = 0; step < steps; ++step) {
        // Behind the last step come the next outputs. Further groups find the weights near.
        if (const int64_t ahead = step + AHEAD; group == 0) {
            fetch(weights, output + ahead / steps * SIDE, SIDE, ahead % steps * DEPTH, DEPTH);
        }
        const Tile next = weight_of(step + 1);
        add_products<Side::Left>(scratch + step % 2 * BOTH, tokens.at(group, step), tiles,
                                 step + 1 < steps ? &next : nullptr);
    }
    store_sums(sums, tiles);
}

RINGTUNE_AVX512 void store_outputs(const float *sums, int64_t tokens, int64_t output, int64_t outputs,
                                   const float *bias, float *result) {
    const __mmask16 lanes = lanes_before(output, outputs);
    const __m512 offset = bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes, bias + output);
    for (int64_t first = 0; first < tokens; first += SIDE, sums += SUMS) {
        __m512i rows[SIDE];
        for (int64_t row = 0; row < SIDE; ++row) {
            rows[row] = _mm512_load_si512(sums + row * SIDE);
        }
        flash::tiles::transpose(rows);
        for (int64_t token = first; token < std::min(first + SIDE, tokens); ++token) {
            _mm512_mask_storeu_ps(result + token * outputs + output, lanes,
                                  _mm512_add_ps(_mm512_castsi512_ps(rows[token - first]), offset));
        }
    }
}

// Of `strips` tiles of inputs and a group of tokens: [strips][GROUP][16 tokens][16 inputs]. `scratch`: two stretches of
// weights.
RINGTUNE_TILES void sum_inputs(const Matrix &weights, int64_t input, int64_t strips, const Tokens &tokens,
                               int64_t group, Bf16 *scratch, float *sums) {
    const int64_t steps = tokens.steps, tiles = divide_up(tokens.count(group), SIDE);
    const int64_t units = divide_up(steps, STRETCH) * strips; // a unit is a stretch of one strip
    const auto steps_of = [&](int64_t unit) {
        return unit < units ? std::min(STRETCH, steps - unit / strips * STRETCH) : 0;
    };
    const auto weight_of = [&](int64_t unit, int64_t step) {
        return Tile{&weights, (unit / strips * STRETCH + step) * DEPTH, input + unit % strips * SIDE,
                    scratch + (unit % 2 * STRETCH + step) * BOTH};
    };
    for (int64_t step = 0; step < steps_of(0); ++step) {
        weight_of(0, step).make_rows<Side::Right>(0, SIDE);
    }
    for (int64_t unit = 0; unit < units; ++unit) {
        const int64_t first = unit / strips * STRETCH, strip = unit % strips;
        float *own = sums + strip * GROUP * SUMS;
        if (first == 0) {
            begin_sums();
        } else {
            load_sums(own, tiles);
        }
        // A stretch has no more steps than the one before, so that none of the next unit's is left out.
        for (int64_t step = 0; step < steps_of(unit); ++step) {
            if (group == 0 && strip % 2 == 0) {
                fetch(weights, (first + STRETCH + step) * DEPTH, DEPTH, input + strip * SIDE, 2 * SIDE);
            }
            const Tile next = weight_of(unit + 1, step);
            add_products<Side::Right>(scratch + (unit % 2 * STRETCH + step) * BOTH, tokens.at(group, first + step),
                                      tiles, step < steps_of(unit + 1) ? &next : nullptr);
        }
        store_sums(own, tiles);
    }
}

RINGTUNE_AVX512 void store_inputs(const float *sums, int64_t tokens, int64_t input, int64_t inputs, float *result) {
    const __mmask16 lanes = lanes_before(input, inputs);
    for (int64_t token = 0; token < tokens; ++token) {
        _mm512_mask_storeu_ps(result + token * inputs + input, lanes, _mm512_load_ps(sums + token * SIDE));
    }
}

} // namespace

void multiply(const Backend &backend, const Sizes &sizes, const float *x, const float *weight, const float *bias,
              float *result) {
    // The product is made transposed, [outputs][rows]: weights are then a left operand, row by row as they lie.
    const Tokens tokens = split_tokens(backend, {x, sizes.rows, sizes.inputs}, Side::Right);
    const Matrix weights{weight, sizes.outputs, sizes.inputs};
    backend.parallel_for(divide_up(sizes.outputs, SIDE), [&](int64_t begin, int64_t end) {
        const Multiplying multiplying(backend);
        const Buffer<Bf16> scratch = allocate<Bf16>(2 * BOTH);
        const Buffer<float> sums = allocate<float>(GROUP * SUMS);
        for (int64_t output = begin * SIDE; output < end * SIDE; output += SIDE) {
            for (int64_t group = 0; group < tokens.groups(); ++group) {
                sum_outputs(weights, output, tokens, group, &scratch[0], &sums[0]);
                store_outputs(&sums[0], tokens.count(group), output, sizes.outputs, bias,
                              result + tokens.first(group) * sizes.outputs);
            }
        }
    });
}

void multiply_back(const Backend &backend, const Sizes &sizes, const float *gradient, const float *weight,
                   float *result) {
    const Tokens tokens = split_tokens(backend, {gradient, sizes.rows, sizes.outputs}, Side::Left);
    const Matrix weights{weight, sizes.outputs, sizes.inputs};
    backend.parallel_for(divide_up(sizes.inputs, SIDE), [&](int64_t begin, int64_t end) {
        const Multiplying multiplying(backend);
        const Buffer<Bf16> scratch = allocate<Bf16>(2 * STRETCH * BOTH);
        const Buffer<float> sums = allocate<float>(STRIPS * GROUP * SUMS);
        for (int64_t from = begin; from < end; from += STRIPS) {
            const int64_t strips = std::min(STRIPS, end - from);
            for (int64_t group = 0; group < tokens.groups(); ++group) {
                sum_inputs(weights, from * SIDE, strips, tokens, group, &scratch[0], &sums[0]);
                for (int64_t strip = 0; strip < strips; ++strip) {
                    store_inputs(&sums[strip * GROUP * SUMS], tokens.count(group), (from + strip) * SIDE, sizes.inputs,
                                 result + tokens.first(group) * sizes.inputs);
                }
            }
        }
    });
}

} // namespace ringtune::split
