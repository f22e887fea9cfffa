// Scores lie as [keys][queries]: maxima and sums of a query run down a vector's lane. The output is summed up transposed,
// [width][queries], with queries in the order of query_of.

#include "attention_tiles.h"

#include <cmath>

namespace ringtune::flash::tiles {

namespace {

// Blocks of keys whose probabilities are multiplied at once. The scores of the step after them are made meanwhile: both
// are 16 KB.
constexpr int64_t STEP = 2;

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
    Buffer<float> scores[2];    // [STEP][2][2], of every other step
    Buffer<Bf16> probabilities; // right operands over the keys, [STEP][2]
    Buffer<float> output;       // [wide][2]
    alignas(64) float maximum[BLOCK]; // of the scores so far, times log2(e)
    alignas(64) float sum[BLOCK];     // of 2^(score - maximum)

    explicit Scratch(const Packed &packed)
        : queries(allocate<Bf16>(2 * packed.depth * VALUES)),
          scores{allocate<float>(STEP * 4 * SUMS), allocate<float>(STEP * 4 * SUMS)},
          probabilities(allocate<Bf16>(STEP * 2 * VALUES)), output(allocate<float>(packed.wide * 2 * SUMS)) {}
};

// The scores of a block of keys, made a part at a time between vectors: the processor multiplies tiles while it works on
// vectors, if both lie close enough together. Each half, of 16 keys, takes three parts of products, and one that stores
// what came out, which would have to wait right behind them.
class ScoresInParts {
  public:
    static constexpr int64_t PARTS = 8;

    ScoresInParts() = default; // nothing to do
    // The tiles of the keys, the left operand, and of the queries, both [2][depth], and where the scores go, [2][2].
    ScoresInParts(const Bf16 *keys, const Bf16 *queries, int64_t depth, float *scores)
        : keys_(keys), queries_(queries), depth_(depth), third_(divide_up(depth, 3)), scores_(scores) {}

    RINGTUNE_TILES inline void make(int64_t part) const {
        if (keys_ == nullptr) {
            return;
        }
        const int64_t half = part / 4, third = part % 4;
        float *scores = scores_ + half * 2 * SUMS;
        if (third == 3) {
            _tile_stored(0, scores, LINE);
            _tile_stored(1, scores + SUMS, LINE);
            return;
        }
        if (third == 0) {
            _tile_zero(0);
            _tile_zero(1);
        }
        const Bf16 *keys = keys_ + half * depth_ * VALUES;
        for (int64_t at = third * third_; at < std::min((third + 1) * third_, depth_); ++at) {
            _tile_loadd(4, keys + at * VALUES, LINE);
            _tile_loadd(5, queries_ + at * VALUES, LINE);
            _tile_dpbf16ps(0, 4, 5);
            _tile_loadd(6, queries_ + (depth_ + at) * VALUES, LINE);
            _tile_dpbf16ps(1, 4, 6);
        }
    }

  private:
    const Bf16 *keys_ = nullptr, *queries_ = nullptr;
    int64_t depth_ = 0, third_ = 0;
    float *scores_ = nullptr;
};

// A step's blocks, or what is left of them.
struct Step {
    float *scores; // [blocks][2][2]
    int64_t blocks;
    ScoresInParts next[STEP]; // the step after it
};

// Eight vectors of scores: four keys from `key` on, each against 32 queries.
RINGTUNE_AVX512 static inline void load_rows(const float *scores, int64_t key, __m512 (&rows)[TOGETHER]) {
    const float *first = scores + key / SIDE * 2 * SUMS + key % SIDE * SIDE;
    RINGTUNE_TOGETHER {
        rows[each] = _mm512_load_ps(first + each / 2 * SIDE + each % 2 * SUMS);
    }
}

// The maxima of 32 queries become those of a step's scores too. What their sums so far are scaled by.
RINGTUNE_AVX512 static inline void raise_maximum(const Step &step, float scale, float *maximum, __m512 (&correction)[2]) {
    __m512 largest[TOGETHER], rows[TOGETHER];
    RINGTUNE_TOGETHER {
        largest[each] = _mm512_set1_ps(LOWEST_SCORE);
    }
    for (int64_t key = 0; key < step.blocks * BLOCK; key += TOGETHER / 2) {
        load_rows(step.scores + key / BLOCK * 4 * SUMS, key % BLOCK, rows);
        RINGTUNE_TOGETHER {
            largest[each] = _mm512_max_ps(largest[each], rows[each]);
        }
    }
    for (int64_t half = 0; half < 2; ++half) {
        const __m512 of_step = _mm512_max_ps(_mm512_max_ps(largest[half], largest[half + 2]),
                                             _mm512_max_ps(largest[half + 4], largest[half + 6]));
        const __m512 before = _mm512_load_ps(maximum + half * SIDE);
        const __m512 after = _mm512_max_ps(before, _mm512_mul_ps(of_step, _mm512_set1_ps(scale)));
        _mm512_store_ps(maximum + half * SIDE, after);
        correction[half] = exp2_of(_mm512_sub_ps(before, after));
    }
}

// Scales down what was added up relative to smaller maxima.
RINGTUNE_AVX512 void correct_output(const __m512 (&correction)[2], int64_t wide, float *output) {
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
            float *place = output + (row / SIDE * 2 + half) * SUMS + row % SIDE * SIDE;
            _mm512_store_ps(place, _mm512_mul_ps(_mm512_load_ps(place), own));
        }
    }
}

// A step's scores become probabilities relative to the maximum so far, and the next step's scores are made.
RINGTUNE_TILES void online_softmax(Scratch &scratch, const Step &step, float scale, int64_t wide) {
    const __m512 factor = _mm512_set1_ps(scale);
    __m512 correction[2], maximum[2], sum[2];
    raise_maximum(step, scale, scratch.maximum, correction);
    for (int64_t half = 0; half < 2; ++half) {
        maximum[half] = _mm512_load_ps(scratch.maximum + half * SIDE);
        sum[half] = _mm512_mul_ps(_mm512_load_ps(scratch.sum + half * SIDE), correction[half]);
    }
    for (int64_t block = 0; block < step.blocks; ++block) {
        Bf16 *pairs = &scratch.probabilities[block * 2 * VALUES];
        for (int64_t part = 0; part < ScoresInParts::PARTS; ++part, pairs += 2 * DEPTH) {
            __m512 x[TOGETHER];
            load_rows(step.scores + block * 4 * SUMS, part * TOGETHER / 2, x);
            RINGTUNE_TOGETHER {
                x[each] = _mm512_fmsub_ps(x[each], factor, maximum[each % 2]);
            }
            step.next[block].make(part);
            short_exp2_of(x);
            RINGTUNE_TOGETHER {
                sum[each % 2] = _mm512_add_ps(sum[each % 2], x[each]);
            }
            store_pairs(to_bf16(x[0], x[1]), to_bf16(x[2], x[3]), pairs);
            store_pairs(to_bf16(x[4], x[5]), to_bf16(x[6], x[7]), pairs + DEPTH);
        }
    }
    _mm512_store_ps(scratch.sum, sum[0]);
    _mm512_store_ps(scratch.sum + SIDE, sum[1]);
    correct_output(correction, wide, &scratch.output[0]);
}

// Attention of 32 queries to the keys of their head; the result stays in the scratch.
RINGTUNE_TILES void attend(const Shape &shape, const Packed &packed, int64_t head, Scratch &scratch) {
    std::fill_n(scratch.maximum, BLOCK, LOWEST_SCORE);
    std::fill_n(scratch.sum, BLOCK, 0.0f);
    std::fill_n(&scratch.output[0], packed.wide * 2 * SUMS, 0.0f);
    const int64_t at = head * packed.blocks;
    const auto scores_of = [&](int64_t block) {
        return &scratch.scores[block / STEP % 2][block % STEP * 4 * SUMS];
    };
    const auto in_parts = [&](int64_t block) {
        return block < packed.blocks
                   ? ScoresInParts(packed.keys_at(at + block), &scratch.queries[0], packed.depth, scores_of(block))
                   : ScoresInParts();
    };
    for (int64_t block = 0; block < std::min(STEP, packed.blocks); ++block) {
        multiply_scores(packed.keys_at(at + block), &scratch.queries[0], packed.depth, scores_of(block));
    }
    for (int64_t first = 0; first < packed.blocks; first += STEP) {
        Step step{scores_of(first), std::min(STEP, packed.blocks - first), {}};
        for (int64_t block = 0; block < step.blocks; ++block) {
            hide_tokens_from(shape.keys - (first + block) * BLOCK, scores_of(first + block));
            step.next[block] = in_parts(first + STEP + block);
        }
        online_softmax(scratch, step, shape.scale * LOG2_E, packed.wide);
        add_all_tall_products({.left = packed.values_at(at + first),
                               .left_row = VALUES,
                               .left_step = packed.wide * VALUES,
                               .right = &scratch.probabilities[0],
                               .right_step = 2 * VALUES,
                               .steps = step.blocks,
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
