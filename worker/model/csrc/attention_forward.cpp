#include "attention_tiles.h"
#include "dropout_lanes.h"

#include <cmath>
#include <optional>

namespace ringtune::flash {

namespace {

// Scores lie transposed, [keys][queries]: maxima and sums of a query then run down a vector's lane.
constexpr int64_t QUERY_BLOCK = 96;
constexpr int64_t KEY_BLOCK = 128;

// Keys and values of one head, block by block.
struct PackedKeys {
    int64_t blocks;
    Width deep;             // as a product adds up over the width
    Width tall;             // as the width is a product's rows
    int64_t key_elements;   // of one block, [KEY_BLOCK][deep]
    int64_t value_elements; // of one block, [tall][KEY_BLOCK]
    Buffer<Bf16> keys;
    Buffer<Bf16> values;
};

PackedKeys pack(const Shape &shape, const Backend &backend, Input key, Input value) {
    const int64_t heads = shape.batches * shape.heads;
    PackedKeys packed;
    packed.blocks = divide_up(shape.keys, KEY_BLOCK);
    packed.deep = {shape.width, round_up(shape.width, backend.depth)};
    packed.tall = {shape.width, round_up(shape.width, backend.rows)};
    packed.key_elements = KEY_BLOCK * packed.deep.padded;
    packed.value_elements = KEY_BLOCK * packed.tall.padded;
    packed.keys = allocate<Bf16>(heads * packed.blocks * packed.key_elements);
    packed.values = allocate<Bf16>(heads * packed.blocks * packed.value_elements);
    backend.parallel_for(heads * packed.blocks, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
            const int64_t head = task / packed.blocks;
            const Block block = block_at(task % packed.blocks, KEY_BLOCK, shape.keys);
            pack_rows(rows_of(key, shape, head), block, packed.deep, &packed.keys[task * packed.key_elements]);
            pack_columns(rows_of(value, shape, head), block, packed.tall,
                         &packed.values[task * packed.value_elements]);
        }
    });
    return packed;
}

// What a thread works in: one block of queries against one block of keys.
struct Scratch {
    Buffer<Bf16> query;         // [deep/2][QUERY_BLOCK][2]
    Buffer<float> scores;       // [KEY_BLOCK][QUERY_BLOCK]
    Buffer<Bf16> probabilities; // [KEY_BLOCK/2][QUERY_BLOCK][2]
    Buffer<float> output;       // [tall][QUERY_BLOCK]
    alignas(64) float maximum[QUERY_BLOCK]; // of the scores so far, times log2(e)
    alignas(64) float sum[QUERY_BLOCK];     // of 2^(score - maximum)

    explicit Scratch(const PackedKeys &packed)
        : query(allocate<Bf16>(packed.deep.padded * QUERY_BLOCK)), scores(allocate<float>(KEY_BLOCK * QUERY_BLOCK)),
          probabilities(allocate<Bf16>(KEY_BLOCK * QUERY_BLOCK)),
          output(allocate<float>(packed.tall.padded * QUERY_BLOCK)) {}
};

// What is dropped of one block of queries' probabilities. Without: nothing.
struct Dropping {
    std::optional<dropout::Drawing> drawing;
    int64_t row = 0; // of the block's first query

    Dropping(const Shape &shape, int64_t head, const Block &queries) {
        if (shape.mask != nullptr) {
            drawing.emplace(*shape.mask, head / shape.heads);
            row = head % shape.heads * shape.queries + queries.first;
        }
    }
};

// Scores of `keys` (an even count), from `first_key` on, become probabilities relative to the maximum so far; a maximum
// that grew scales down what was added up before it. Of what is dropped no value is added up, but its probability is.
template <bool DROPS>
RINGTUNE_AVX512 void online_softmax(Scratch &scratch, int64_t keys, int64_t width, float scale,
                                    const Dropping &dropping, int64_t first_key) {
    const __m512 factor = _mm512_set1_ps(scale);
    for (int64_t query = 0; query < QUERY_BLOCK; query += LANES) {
        const float *scores = scratch.scores.get() + query;
        // 1. The new maximum.
        __m512 even = _mm512_set1_ps(LOWEST_SCORE);
        __m512 odd = even;
        for (int64_t key = 0; key < keys; key += 2) {
            even = _mm512_max_ps(even, _mm512_load_ps(scores + key * QUERY_BLOCK));
            odd = _mm512_max_ps(odd, _mm512_load_ps(scores + (key + 1) * QUERY_BLOCK));
        }
        const __m512 before = _mm512_load_ps(scratch.maximum + query);
        const __m512 maximum = _mm512_max_ps(before, _mm512_mul_ps(_mm512_max_ps(even, odd), factor));
        const __m512 correction = exp2_of(_mm512_sub_ps(before, maximum));
        _mm512_store_ps(scratch.maximum + query, maximum);
        // 2. The probabilities, two keys at a time.
        __m512 sum = _mm512_mul_ps(_mm512_load_ps(scratch.sum + query), correction);
        __m512 odd_sum = _mm512_setzero_ps();
        [[maybe_unused]] __mmask16 kept[4];
        for (int64_t key = 0; key < keys; key += 2) {
            __m512 first =
                exp2_of(_mm512_fmsub_ps(_mm512_load_ps(scores + key * QUERY_BLOCK), factor, maximum));
            __m512 second =
                exp2_of(_mm512_fmsub_ps(_mm512_load_ps(scores + (key + 1) * QUERY_BLOCK), factor, maximum));
            sum = _mm512_add_ps(sum, first);
            odd_sum = _mm512_add_ps(odd_sum, second);
            if constexpr (DROPS) {
                if (key % 4 == 0) {
                    dropout::kept_down(*dropping.drawing, dropping.row + query, first_key + key, kept);
                }
                first = _mm512_maskz_mov_ps(kept[key % 4], first);
                second = _mm512_maskz_mov_ps(kept[key % 4 + 1], second);
            }
            _mm512_store_si512(&scratch.probabilities[(key / 2 * QUERY_BLOCK + query) * 2],
                               paired(to_bf16(first, second)));
        }
        _mm512_store_ps(scratch.sum + query, _mm512_add_ps(sum, odd_sum));
        // 3. The output so far.
        if (_mm512_cmp_ps_mask(correction, _mm512_set1_ps(1.0f), _CMP_NEQ_UQ) != 0) {
            for (int64_t column = 0; column < width; ++column) {
                float *output = &scratch.output[column * QUERY_BLOCK + query];
                _mm512_store_ps(output, _mm512_mul_ps(_mm512_load_ps(output), correction));
            }
        }
    }
}

// Scores of keys behind their queries become those of nothing.
void hide_later(Scratch &scratch, int64_t first_query, int64_t first_key, int64_t keys) {
    for (int64_t key = std::max<int64_t>(first_query - first_key + 1, 0); key < keys; ++key) {
        const int64_t hidden = std::min(first_key + key - first_query, QUERY_BLOCK);
        std::fill_n(&scratch.scores[key * QUERY_BLOCK], hidden, LOWEST_SCORE);
    }
}

// Attention of one block of queries to the keys of its head that it sees; the result stays in the scratch.
void attend(const Shape &shape, const Backend &backend, const PackedKeys &packed, int64_t head, const Block &queries,
            Scratch &scratch) {
    const int64_t deep = packed.deep.padded, tall = packed.tall.padded;
    std::fill(scratch.maximum, scratch.maximum + QUERY_BLOCK, LOWEST_SCORE);
    std::fill(scratch.sum, scratch.sum + QUERY_BLOCK, 0.0f);
    std::fill(&scratch.output[0], &scratch.output[0] + tall * QUERY_BLOCK, 0.0f);
    const Dropping dropping(shape, head, queries);
    const auto softmax = dropping.drawing ? online_softmax<true> : online_softmax<false>;
    const int64_t seen = shape.causal ? queries.first + queries.count : shape.keys;
    for (int64_t index = 0; index < divide_up(seen, KEY_BLOCK); ++index) {
        const int64_t count = block_at(index, KEY_BLOCK, seen).count;
        const int64_t even_count = round_up(count, 2), full_count = round_up(count, backend.depth);
        const int64_t at = head * packed.blocks + index;
        backend.gemm(round_up(count, backend.rows), QUERY_BLOCK, deep, &packed.keys[at * packed.key_elements], deep,
                     &scratch.query[0], QUERY_BLOCK, &scratch.scores[0], QUERY_BLOCK, false);
        if (shape.causal) {
            hide_later(scratch, queries.first, index * KEY_BLOCK, count);
        }
        std::fill(&scratch.scores[0] + count * QUERY_BLOCK, &scratch.scores[0] + even_count * QUERY_BLOCK,
                  LOWEST_SCORE);
        softmax(scratch, even_count, shape.width, shape.scale * LOG2_E, dropping, index * KEY_BLOCK);
        std::fill(&scratch.probabilities[0] + even_count * QUERY_BLOCK,
                  &scratch.probabilities[0] + full_count * QUERY_BLOCK, Bf16{0});
        backend.gemm(tall, QUERY_BLOCK, full_count, &packed.values[at * packed.value_elements], KEY_BLOCK,
                     &scratch.probabilities[0], QUERY_BLOCK, &scratch.output[0], QUERY_BLOCK, true);
    }
}

} // namespace

void forward(const Shape &shape, const Backend &backend, Input query, Input key, Input value, Output output,
             float *log_sum_exp) {
    if (backend.gemm == gemm_amx && !shape.causal && shape.mask == nullptr) {
        return tiles::forward(shape, backend, query, key, value, output,
                              log_sum_exp);
    }
    const PackedKeys packed = pack(shape, backend, key, value);
    const int64_t query_blocks = divide_up(shape.queries, QUERY_BLOCK);
    const float kept_scale = shape.mask != nullptr ? shape.mask->scale : 1.0f;
    backend.parallel_for(shape.batches * shape.heads * query_blocks, [&](int64_t begin, int64_t end) {
        const Multiplying multiplying(backend);
        Scratch scratch(packed);
        for (int64_t task = begin; task < end; ++task) {
            const int64_t head = task / query_blocks;
            const Block block = block_at(task % query_blocks, QUERY_BLOCK, shape.queries);
            pack_width_pairs(rows_of(query, shape, head), block, packed.deep, &scratch.query[0]);
            attend(shape, backend, packed, head, block, scratch);
            for (int64_t token = 0; token < block.block; ++token) {
                if (token < block.count) {
                    log_sum_exp[head * shape.queries + block.first + token] =
                        scratch.maximum[token] + std::log2(scratch.sum[token]);
                }
                scratch.sum[token] = kept_scale / scratch.sum[token];
            }
            store_transposed(&scratch.output[0], QUERY_BLOCK, scratch.sum, 1.0f, rows_of(output, shape, head), block,
                             shape.width);
        }
    });
}

} // namespace ringtune::flash
