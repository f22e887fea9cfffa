// Scores lie as [keys][queries]: maxima and sums of a query run down a vector's lane. The output is summed up transposed,
// [width][queries], with queries in the order of query_of.

#include "attention_tiles.h"

#include <cmath>

namespace ringtune::flash::tiles {

namespace {

// Blocks of keys whose probabilities are multiplied at once: 16 KB of scores.
constexpr int64_t STEP = 4;

// Keys and values of all heads, 32 by 32.
struct Packed {
    int64_t blocks;
    int64_t depth;       // tiles that a product over the width takes
    int64_t wide;        // tiles that the width takes as rows
    Buffer<Bf16> keys;   // left operands over the width, [heads][blocks][2][depth]
    Buffer<Bf16> values; // left operands over the tokens, [heads][blocks][wide]

    const Bf16 *keys_at(int64_t block) const { return &keys[block * 2 * depth * VALUES]; }
    const Bf16 *values_at(int64_t block) const { return &values[block * wide * VALUES]; }
};

Packed pack(const Shape &shape, const Backend &backend, Input key, Input value) {
    const int64_t heads = shape.batches * shape.heads;
    Packed packed;
    packed.blocks = divide_up(shape.keys, BLOCK);
    packed.depth = divide_up(shape.width, DEPTH);
    packed.wide = divide_up(shape.width, SIDE);
    packed.keys = allocate<Bf16>(heads * packed.blocks * 2 * packed.depth * VALUES);
    packed.values = allocate<Bf16>(heads * packed.blocks * packed.wide * VALUES);
    backend.parallel_for(heads * packed.blocks, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
            const int64_t head = task / packed.blocks;
            const Block block = block_at(task % packed.blocks, BLOCK, shape.keys);
            const Rows<const Bf16> keys = rows_of(key, shape, head);
            Bf16 *tiles = &packed.keys[task * 2 * packed.depth * VALUES];
            pack_left(keys, block.first, std::min(SIDE, block.count), shape.width, tiles);
            pack_left(keys, block.first + SIDE, block.count - SIDE, shape.width, tiles + packed.depth * VALUES);
            pack_tokens_left(rows_of(value, shape, head), block.first, block.count, shape.width,
                             &packed.values[task * packed.wide * VALUES]);
        }
    });
    return packed;
}

// What a thread works in: 32 queries.
struct Scratch {
    Buffer<Bf16> queries;       // right operands over the width, [2][depth]
    Buffer<float> scores;       // [STEP][2][2]
    Buffer<Bf16> probabilities; // right operands over the keys, [STEP][2]
    Buffer<float> output;       // [wide][2]
    alignas(64) float maximum[BLOCK]; // of the scores so far, times log2(e)
    alignas(64) float sum[BLOCK];     // of 2^(score - maximum)

    explicit Scratch(const Packed &packed)
        : queries(allocate<Bf16>(2 * packed.depth * VALUES)), scores(allocate<float>(STEP * 4 * SUMS)),
          probabilities(allocate<Bf16>(STEP * 2 * VALUES)), output(allocate<float>(packed.wide * 2 * SUMS)) {}
};

// What 16 queries' sums so far are scaled by: their maxima become those of the scores of `blocks` too, two rows of tiles
// each, of which `scores` is the first.
RINGTUNE_AVX512 __m512 raise_maximum(const float *scores, int64_t blocks, float scale, float *maximum) {
    __m512 even = _mm512_set1_ps(LOWEST_SCORE), odd = even;
    for (int64_t tile = 0; tile < blocks * 2; ++tile, scores += 2 * SUMS) {
        for (int64_t row = 0; row < SIDE; row += 2) {
            even = _mm512_max_ps(even, _mm512_load_ps(scores + row * SIDE));
            odd = _mm512_max_ps(odd, _mm512_load_ps(scores + (row + 1) * SIDE));
        }
    }
    const __m512 before = _mm512_load_ps(maximum), largest = _mm512_mul_ps(_mm512_max_ps(even, odd), _mm512_set1_ps(scale));
    const __m512 after = _mm512_max_ps(before, largest);
    _mm512_store_ps(maximum, after);
    return exp2_of(_mm512_sub_ps(before, after));
}

// Scores of `blocks` of keys become probabilities relative to the maximum so far; a maximum that grew scales down what was
// added up before it.
RINGTUNE_AVX512 void online_softmax(Scratch &scratch, int64_t blocks, float scale, int64_t wide) {
    const __m512 factor = _mm512_set1_ps(scale);
    __m512 correction[2], maximum[2], sum[2];
    for (int64_t half = 0; half < 2; ++half) {
        correction[half] =
            raise_maximum(&scratch.scores[half * SUMS], blocks, scale, scratch.maximum + half * SIDE);
        maximum[half] = _mm512_load_ps(scratch.maximum + half * SIDE);
        sum[half] = _mm512_mul_ps(_mm512_load_ps(scratch.sum + half * SIDE), correction[half]);
    }
    const float *scores = &scratch.scores[0];
    Bf16 *pairs = &scratch.probabilities[0];
    for (int64_t block = 0; block < blocks; ++block, scores += 4 * SUMS, pairs += 2 * VALUES) {
        for (int64_t key = 0; key < BLOCK; key += 2) {
            __m512i rows[2];
#pragma GCC unroll 2
            for (int64_t each = 0; each < 2; ++each) {
                const float *row = scores + key / SIDE * 2 * SUMS + (key + each) % SIDE * SIDE;
                const __m512 left = short_exp2_of(_mm512_fmsub_ps(_mm512_load_ps(row), factor, maximum[0]));
                const __m512 right = short_exp2_of(_mm512_fmsub_ps(_mm512_load_ps(row + SUMS), factor, maximum[1]));
                sum[0] = _mm512_add_ps(sum[0], left);
                sum[1] = _mm512_add_ps(sum[1], right);
                rows[each] = to_bf16(left, right);
            }
            store_pairs(rows[0], rows[1], pairs + key / 2 * DEPTH);
        }
    }
    _mm512_store_ps(scratch.sum, sum[0]);
    _mm512_store_ps(scratch.sum + SIDE, sum[1]);
    const __m512 one = _mm512_set1_ps(1.0f);
    if ((_mm512_cmp_ps_mask(correction[0], one, _CMP_NEQ_UQ) | _mm512_cmp_ps_mask(correction[1], one, _CMP_NEQ_UQ)) == 0) {
        return;
    }
    for (int64_t half = 0; half < 2; ++half) {
        alignas(64) int32_t queries[SIDE];
        for (int64_t column = 0; column < SIDE; ++column) {
            queries[column] = int32_t(query_of(half, column));
        }
        const __m512 own = _mm512_permutex2var_ps(correction[0], _mm512_load_si512(queries), correction[1]);
        for (int64_t row = 0; row < wide * SIDE; ++row) {
            float *output = &scratch.output[(row / SIDE * 2 + half) * SUMS + row % SIDE * SIDE];
            _mm512_store_ps(output, _mm512_mul_ps(_mm512_load_ps(output), own));
        }
    }
}

// Attention of 32 queries to the keys of their head; the result stays in the scratch.
RINGTUNE_TILES void attend(const Shape &shape, const Packed &packed, int64_t head, Scratch &scratch) {
    std::fill_n(scratch.maximum, BLOCK, LOWEST_SCORE);
    std::fill_n(scratch.sum, BLOCK, 0.0f);
    std::fill_n(&scratch.output[0], packed.wide * 2 * SUMS, 0.0f);
    const int64_t at = head * packed.blocks;
    const auto make_scores = [&](int64_t first) {
        for (int64_t block = 0; block < std::min(STEP, packed.blocks - first); ++block) {
            float *scores = &scratch.scores[block * 4 * SUMS];
            multiply_scores(packed.keys_at(at + first + block), &scratch.queries[0], packed.depth, scores);
            hide_tokens_from(shape.keys - (first + block) * BLOCK, scores);
        }
    };
    make_scores(0);
    for (int64_t first = 0; first < packed.blocks; first += STEP) {
        const int64_t blocks = std::min(STEP, packed.blocks - first);
        online_softmax(scratch, blocks, shape.scale * LOG2_E, packed.wide);
        // Before the products of what was just written: it takes a while until tiles can be loaded from there.
        if (first + STEP < packed.blocks) {
            make_scores(first + STEP);
        }
        add_all_tall_products({.left = packed.values_at(at + first),
                               .left_row = VALUES,
                               .left_step = packed.wide * VALUES,
                               .right = &scratch.probabilities[0],
                               .right_step = 2 * VALUES,
                               .steps = blocks,
                               .sums = &scratch.output[0],
                               .sums_row = 2 * SUMS,
                               .begins = false},
                              packed.wide);
    }
}

} // namespace

void forward(const Shape &shape, const Backend &backend, Input query, Input key, Input value, Output output,
             float *log_sum_exp) {
    const Packed packed = pack(shape, backend, key, value);
    const int64_t blocks = divide_up(shape.queries, BLOCK);
    backend.parallel_for(shape.batches * shape.heads * blocks, [&](int64_t begin, int64_t end) {
        const Multiplying multiplying(backend);
        Scratch scratch(packed);
        for (int64_t task = begin; task < end; ++task) {
            const int64_t head = task / blocks;
            const Block block = block_at(task % blocks, BLOCK, shape.queries);
            const Rows<const Bf16> queries = rows_of(query, shape, head);
            pack_right(queries, block.first, std::min(SIDE, block.count), shape.width, &scratch.queries[0]);
            pack_right(queries, block.first + SIDE, block.count - SIDE, shape.width,
                       &scratch.queries[packed.depth * VALUES]);
            attend(shape, packed, head, scratch);
            for (int64_t token = 0; token < BLOCK; ++token) {
                if (token < block.count) {
                    log_sum_exp[head * shape.queries + block.first + token] =
                        scratch.maximum[token] + std::log2(scratch.sum[token]);
                }
                scratch.sum[token] = 1.0f / scratch.sum[token];
            }
            store_queries(&scratch.output[0], scratch.sum, rows_of(output, shape, head), block, shape.width);
        }
    });
}

} // namespace ringtune::flash::tiles
