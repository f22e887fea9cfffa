// For one head, with P the probabilities, O the output and G its gradient (all [queries, ...]):
//   dV = PT G,  dP = G VT,  dS = P * (dP - rowsum(O * G)),  dQ = scale dS K,  dK = scale dST Q.
// Where D, 0 or 1 / (1 - rate), drops probabilities, it is dV = (D * P)T G and dP = D * G VT, with the same rowsum.
// Blocks of P and dS are computed once and used by all three sums. The sums over queries (dK, dV) and over
// keys (dQ) cannot both belong to one thread; so each task takes a stretch of one head's keys (or, where the
// keys are few, of its queries) and leaves partial sums, which a last pass adds up in the tasks' order.

#include "attention_tiles.h"
#include "dropout_lanes.h"

#include <optional>

namespace ringtune::flash {

namespace {

// Scores lie as [queries][keys].
constexpr int64_t QUERY_BLOCK = 64;
constexpr int64_t KEY_BLOCK = 192;
// Into how many tasks the heads of one sample are split. With 12 for each of 8 heads, 28, 32 and 56 threads are busy for
// 79, 92 and 79% of the time at 64 x 64 (with 4 they were for 52, 92 and 52%).
constexpr int64_t TASKS = 96;
// The same where a query sees only what is before it. Such heads are many, in every sample of a batch.
constexpr int64_t CAUSAL_TASKS = 24;
// Of a head's keys, as each has partial sums of dQ: with those of dK and dV, 60 MB at 64 x 64.
constexpr int64_t KEY_STRETCHES = 6;
// Of a head's queries where its keys are few: their partial sums are small.
constexpr int64_t QUERY_STRETCHES = 16;

// Which sums are wanted, and how a head is split.
struct Plan {
    Shape shape;
    int64_t heads;        // of the whole batch
    Width deep;           // as a product adds up over the width
    Width tall;           // as the width is a product's rows
    int64_t padded_width; // of right operands and of dQ
    bool want_query;
    bool want_key;
    bool want_value;
    int64_t query_blocks;
    int64_t key_blocks;
    int64_t query_stretch; // blocks in one
    int64_t key_stretch;
    int64_t query_stretches;
    int64_t key_stretches;
};

Plan plan_for(const Shape &shape, const Backend &backend, const Gradients &gradients) {
    Plan plan{};
    plan.shape = shape;
    plan.heads = shape.batches * shape.heads;
    plan.deep = {shape.width, round_up(shape.width, backend.depth)};
    plan.tall = {shape.width, round_up(shape.width, backend.rows)};
    plan.padded_width = round_up(shape.width, LANES);
    plan.want_query = gradients.query.data != nullptr;
    plan.want_key = gradients.key.data != nullptr;
    plan.want_value = gradients.value.data != nullptr;
    plan.query_blocks = divide_up(shape.queries, QUERY_BLOCK);
    plan.key_blocks = divide_up(shape.keys, KEY_BLOCK);
    // By the shape of a sample alone: neither the batch nor the threads move a bit of it.
    const int64_t tasks = divide_up(shape.causal ? CAUSAL_TASKS : TASKS, shape.heads);
    plan.key_stretch = divide_up(plan.key_blocks, std::min(KEY_STRETCHES, tasks));
    plan.key_stretches = divide_up(plan.key_blocks, plan.key_stretch);
    const int64_t parts = plan.key_stretches > 1 ? divide_up(tasks, plan.key_stretches) : QUERY_STRETCHES;
    plan.query_stretch = divide_up(plan.query_blocks, parts);
    plan.query_stretches = divide_up(plan.query_blocks, plan.query_stretch);
    return plan;
}

// The operands of all heads, block by block, each in the layouts its products want (null where not wanted).
struct Packed {
    Buffer<Bf16> query_rows;         // S:  [QUERY_BLOCK][deep]
    Buffer<Bf16> gradient_rows;      // dP: [QUERY_BLOCK][deep]
    Buffer<Bf16> query_columns;      // dK: [tall][QUERY_BLOCK]
    Buffer<Bf16> gradient_columns;   // dV: [tall][QUERY_BLOCK]
    Buffer<Bf16> key_width_pairs;    // S:  [deep/2][KEY_BLOCK][2]
    Buffer<Bf16> value_width_pairs;  // dP: [deep/2][KEY_BLOCK][2]
    Buffer<Bf16> key_token_pairs;    // dQ: [KEY_BLOCK/2][padded_width][2]
    Buffer<float> log_sum_exp;       // [QUERY_BLOCK], in base 2; huge past the end, so that P is 0 there
    Buffer<float> output_dot;        // [QUERY_BLOCK], rowsum(O * G)
};

// The arguments of a backward pass.
struct Operands {
    Input query;
    Input key;
    Input value;
    Input output;
    const float *log_sum_exp;
    Input grad_output;
};

void pack_queries(const Plan &plan, const Operands &operands, int64_t task, Packed &packed) {
    const Shape &shape = plan.shape;
    const int64_t head = task / plan.query_blocks;
    const Block block = block_at(task % plan.query_blocks, QUERY_BLOCK, shape.queries);
    const auto query = rows_of(operands.query, shape, head);
    const auto gradient = rows_of(operands.grad_output, shape, head);
    const auto output = rows_of(operands.output, shape, head);
    pack_rows(query, block, plan.deep, &packed.query_rows[task * QUERY_BLOCK * plan.deep.padded]);
    pack_rows(gradient, block, plan.deep, &packed.gradient_rows[task * QUERY_BLOCK * plan.deep.padded]);
    if (plan.want_key) {
        pack_columns(query, block, plan.tall, &packed.query_columns[task * QUERY_BLOCK * plan.tall.padded]);
    }
    if (plan.want_value) {
        pack_columns(gradient, block, plan.tall, &packed.gradient_columns[task * QUERY_BLOCK * plan.tall.padded]);
    }
    for (int64_t token = 0; token < QUERY_BLOCK; ++token) {
        const bool inside = token < block.count;
        packed.log_sum_exp[task * QUERY_BLOCK + token] =
            inside ? operands.log_sum_exp[head * shape.queries + block.first + token] : -LOWEST_SCORE;
        packed.output_dot[task * QUERY_BLOCK + token] =
            inside ? dot(output.row(block.first + token), gradient.row(block.first + token), shape.width) : 0.0f;
    }
}

void pack_keys(const Plan &plan, const Operands &operands, int64_t task, Packed &packed) {
    const Shape &shape = plan.shape;
    const int64_t head = task / plan.key_blocks;
    const Block block = block_at(task % plan.key_blocks, KEY_BLOCK, shape.keys);
    const auto key = rows_of(operands.key, shape, head);
    const auto value = rows_of(operands.value, shape, head);
    pack_width_pairs(key, block, plan.deep, &packed.key_width_pairs[task * KEY_BLOCK * plan.deep.padded]);
    pack_width_pairs(value, block, plan.deep, &packed.value_width_pairs[task * KEY_BLOCK * plan.deep.padded]);
    if (plan.want_query) {
        pack_token_pairs(key, block, shape.width, &packed.key_token_pairs[task * KEY_BLOCK * plan.padded_width]);
    }
}

Packed pack(const Plan &plan, const Backend &backend, const Operands &operands) {
    const int64_t query_tasks = plan.heads * plan.query_blocks;
    const int64_t key_tasks = plan.heads * plan.key_blocks;
    const int64_t query_tokens = query_tasks * QUERY_BLOCK;
    const int64_t key_tokens = key_tasks * KEY_BLOCK;
    Packed packed;
    packed.query_rows = allocate<Bf16>(query_tokens * plan.deep.padded);
    packed.gradient_rows = allocate<Bf16>(query_tokens * plan.deep.padded);
    packed.query_columns = allocate<Bf16>(plan.want_key ? query_tokens * plan.tall.padded : 0);
    packed.gradient_columns = allocate<Bf16>(plan.want_value ? query_tokens * plan.tall.padded : 0);
    packed.key_width_pairs = allocate<Bf16>(key_tokens * plan.deep.padded);
    packed.value_width_pairs = allocate<Bf16>(key_tokens * plan.deep.padded);
    packed.key_token_pairs = allocate<Bf16>(plan.want_query ? key_tokens * plan.padded_width : 0);
    packed.log_sum_exp = allocate<float>(query_tokens);
    packed.output_dot = allocate<float>(query_tokens);
    backend.parallel_for(query_tasks + key_tasks, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
            if (task < query_tasks) {
                pack_queries(plan, operands, task, packed);
            } else {
                pack_keys(plan, operands, task - query_tasks, packed);
            }
        }
    });
    return packed;
}

// Partial sums, block by block: dQ of each stretch of keys, dK and dV of each stretch of queries, where those are several.
struct Partial {
    Buffer<float> query; // [key_stretches][heads][query_blocks][QUERY_BLOCK][padded_width]
    Buffer<float> key;   // [query_stretches][heads][key_blocks][tall][KEY_BLOCK]
    Buffer<float> value; // as key
};

// Where one stretch of queries has all that see a key: its task stores dK and dV itself, while they are in the cache.
bool has_whole_keys(const Plan &plan) { return plan.query_stretches == 1; }

// What a thread works in: one block of queries against one block of keys.
struct Scratch {
    Buffer<float> scores;             // [QUERY_BLOCK][KEY_BLOCK]
    Buffer<float> score_gradients;    // [QUERY_BLOCK][KEY_BLOCK]
    Buffer<Bf16> probability_pairs;   // [QUERY_BLOCK/2][KEY_BLOCK][2]
    Buffer<Bf16> gradient_pairs;      // [QUERY_BLOCK/2][KEY_BLOCK][2]
    Buffer<Bf16> gradient_rows;       // [QUERY_BLOCK][KEY_BLOCK]
    Buffer<float> key_sums;           // of a stretch that has whole keys: [key_stretch][tall][KEY_BLOCK]
    Buffer<float> value_sums;

    explicit Scratch(const Plan &plan)
        : scores(allocate<float>(QUERY_BLOCK * KEY_BLOCK)), score_gradients(allocate<float>(QUERY_BLOCK * KEY_BLOCK)),
          probability_pairs(allocate<Bf16>(QUERY_BLOCK * KEY_BLOCK)),
          gradient_pairs(allocate<Bf16>(QUERY_BLOCK * KEY_BLOCK)),
          gradient_rows(allocate<Bf16>(QUERY_BLOCK * KEY_BLOCK)),
          key_sums(allocate<float>(has_whole_keys(plan) && plan.want_key ? sums_of_stretch(plan) : 0)),
          value_sums(allocate<float>(has_whole_keys(plan) && plan.want_value ? sums_of_stretch(plan) : 0)) {}

    static int64_t sums_of_stretch(const Plan &plan) { return plan.key_stretch * plan.tall.padded * KEY_BLOCK; }
};

// What is dropped of the probabilities of one block of queries and one of keys.
struct Dropping {
    const dropout::Drawing &drawing;
    int64_t row; // of the first query
    int64_t key;
    float scale;
};

// From scores and dP to the bf16 operands P and dS; `queries` even, `keys` a multiple of 16. Of P no more is written than
// what is kept, and that without its factor.
template <bool DROPS>
RINGTUNE_AVX512 void softmax_gradient(Scratch &scratch, int64_t queries, int64_t keys, const float *log_sum_exp,
                                      const float *output_dot, float scale, const Dropping *dropping) {
    const __m512 factor = _mm512_set1_ps(scale);
    [[maybe_unused]] const __m512 kept_scale = _mm512_set1_ps(DROPS ? dropping->scale : 1.0f);
    for (int64_t query = 0; query < queries; query += 2) {
        const __m512 first_log = _mm512_set1_ps(log_sum_exp[query]);
        const __m512 second_log = _mm512_set1_ps(log_sum_exp[query + 1]);
        const __m512 first_dot = _mm512_set1_ps(output_dot[query]);
        const __m512 second_dot = _mm512_set1_ps(output_dot[query + 1]);
        const float *scores = &scratch.scores[query * KEY_BLOCK];
        const float *gradients = &scratch.score_gradients[query * KEY_BLOCK];
        for (int64_t key = 0; key < keys; key += LANES) {
            __m512 first = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(scores + key), factor, first_log));
            __m512 second =
                exp2_of(_mm512_fmsub_ps(_mm512_load_ps(scores + KEY_BLOCK + key), factor, second_log));
            __m512 first_slope = _mm512_load_ps(gradients + key);
            __m512 second_slope = _mm512_load_ps(gradients + KEY_BLOCK + key);
            [[maybe_unused]] dropout::Kept kept{};
            if constexpr (DROPS) {
                kept = dropout::kept_of_pair(dropping->drawing, dropping->row + query, dropping->key + key);
                first_slope = _mm512_maskz_mul_ps(kept.first, first_slope, kept_scale);
                second_slope = _mm512_maskz_mul_ps(kept.second, second_slope, kept_scale);
            }
            const __m512 first_gradient = _mm512_mul_ps(first, _mm512_sub_ps(first_slope, first_dot));
            const __m512 second_gradient = _mm512_mul_ps(second, _mm512_sub_ps(second_slope, second_dot));
            if constexpr (DROPS) {
                first = _mm512_maskz_mov_ps(kept.first, first);
                second = _mm512_maskz_mov_ps(kept.second, second);
            }
            const __m512i rows = to_bf16(first_gradient, second_gradient);
            _mm512_store_si512(&scratch.probability_pairs[query * KEY_BLOCK + key * 2],
                               paired(to_bf16(first, second)));
            _mm512_store_si512(&scratch.gradient_pairs[query * KEY_BLOCK + key * 2], paired(rows));
            _mm256_store_si256(reinterpret_cast<__m256i *>(&scratch.gradient_rows[query * KEY_BLOCK + key]),
                               _mm512_castsi512_si256(rows));
            _mm256_store_si256(reinterpret_cast<__m256i *>(&scratch.gradient_rows[(query + 1) * KEY_BLOCK + key]),
                               _mm512_extracti64x4_epi64(rows, 1));
        }
    }
}

// One block of queries against one block of keys: adds to the partial sums, or begins them.
struct Pair {
    int64_t query_at; // the blocks' places among those of all heads
    int64_t key_at;
    int64_t queries;
    int64_t keys;
    int64_t hidden_from; // of the first query; one more of each that follows
    const dropout::Drawing *drawing; // of the head's sample; null: nothing is dropped
    int64_t mask_row;                // of the first query
    int64_t mask_key;
    float *grad_query;
    float *grad_key;
    float *grad_value;
    bool first_query;
    bool first_key;
};

void accumulate(const Plan &plan, const Backend &backend, const Packed &packed, const Pair &pair, Scratch &scratch) {
    const int64_t deep = plan.deep.padded, tall = plan.tall.padded;
    const int64_t queries = round_up(pair.queries, backend.depth);
    // No query of the block sees more.
    const int64_t seen = std::min(pair.keys, pair.hidden_from + pair.queries - 1);
    const int64_t keys = round_up(seen, std::max(LANES, backend.depth));
    const int64_t rows_at = pair.query_at * QUERY_BLOCK * deep;
    const int64_t columns_at = pair.query_at * QUERY_BLOCK * tall;
    const int64_t width_pairs_at = pair.key_at * KEY_BLOCK * deep;
    // 1. Scores, and the gradient of the probabilities.
    backend.gemm(queries, keys, deep, &packed.query_rows[rows_at], deep,
                 &packed.key_width_pairs[width_pairs_at], KEY_BLOCK, &scratch.scores[0], KEY_BLOCK, false);
    for (int64_t query = 0; query < queries && seen < keys; ++query) {
        std::fill(&scratch.scores[query * KEY_BLOCK + seen], &scratch.scores[query * KEY_BLOCK] + keys, LOWEST_SCORE);
    }
    for (int64_t query = 0; query < queries && pair.hidden_from + query < keys; ++query) {
        std::fill(&scratch.scores[query * KEY_BLOCK + std::max<int64_t>(pair.hidden_from + query, 0)],
                  &scratch.scores[query * KEY_BLOCK] + keys, LOWEST_SCORE);
    }
    backend.gemm(queries, keys, deep, &packed.gradient_rows[rows_at], deep,
                 &packed.value_width_pairs[width_pairs_at], KEY_BLOCK, &scratch.score_gradients[0], KEY_BLOCK, false);
    // 2. Probabilities, and the gradient of the scores.
    const float *log_sum_exp = &packed.log_sum_exp[pair.query_at * QUERY_BLOCK];
    const float *output_dot = &packed.output_dot[pair.query_at * QUERY_BLOCK];
    const float scale = plan.shape.scale * LOG2_E;
    if (pair.drawing != nullptr) {
        const Dropping dropping{*pair.drawing, pair.mask_row, pair.mask_key, plan.shape.mask->scale};
        softmax_gradient<true>(scratch, queries, keys, log_sum_exp, output_dot, scale, &dropping);
    } else {
        softmax_gradient<false>(scratch, queries, keys, log_sum_exp, output_dot, scale, nullptr);
    }
    // 3. The sums; those of keys that the first block of queries does not see begin with nothing.
    const auto begin = [&](float *sums) {
        for (int64_t row = 0; row < tall && pair.first_query && keys < KEY_BLOCK; ++row) {
            std::fill(sums + row * KEY_BLOCK + keys, sums + (row + 1) * KEY_BLOCK, 0.0f);
        }
    };
    if (plan.want_value) {
        begin(pair.grad_value);
        backend.gemm(tall, keys, queries, &packed.gradient_columns[columns_at], QUERY_BLOCK,
                     &scratch.probability_pairs[0], KEY_BLOCK, pair.grad_value, KEY_BLOCK, !pair.first_query);
    }
    if (plan.want_key) {
        begin(pair.grad_key);
        backend.gemm(tall, keys, queries, &packed.query_columns[columns_at], QUERY_BLOCK,
                     &scratch.gradient_pairs[0], KEY_BLOCK, pair.grad_key, KEY_BLOCK, !pair.first_query);
    }
    if (plan.want_query) {
        backend.gemm(queries, plan.padded_width, keys, &scratch.gradient_rows[0], KEY_BLOCK,
                     &packed.key_token_pairs[pair.key_at * KEY_BLOCK * plan.padded_width], plan.padded_width,
                     pair.grad_query, plan.padded_width, !pair.first_key);
    }
}

// The first block of queries that sees any of a block of keys.
int64_t first_seeing(const Plan &plan, int64_t key) { return plan.shape.causal ? key * KEY_BLOCK / QUERY_BLOCK : 0; }

// Writes dK or dV of one block of a head's keys, from its sums.
void store_keys(const Plan &plan, const float *sums, int64_t head, int64_t key, const Output &target, float factor) {
    store_transposed(sums, KEY_BLOCK, nullptr, factor, rows_of(target, plan.shape, head),
                     block_at(key, KEY_BLOCK, plan.shape.keys), plan.shape.width);
}

float factor_of_values(const Shape &shape) { return shape.mask != nullptr ? shape.mask->scale : 1.0f; }

// All pairs of blocks of one stretch of queries and one of keys.
void accumulate_stretch(const Plan &plan, const Backend &backend, const Packed &packed, Partial &partial,
                        const Gradients &gradients, int64_t task, Scratch &scratch) {
    const int64_t query_part = task % plan.query_stretches;
    const int64_t key_part = task / plan.query_stretches % plan.key_stretches;
    const int64_t head = task / plan.query_stretches / plan.key_stretches;
    const int64_t first_query = query_part * plan.query_stretch;
    const int64_t first_key = key_part * plan.key_stretch;
    const int64_t query_end = std::min(first_query + plan.query_stretch, plan.query_blocks);
    const int64_t key_end = std::min(first_key + plan.key_stretch, plan.key_blocks);
    const int64_t key_elements = plan.tall.padded * KEY_BLOCK;
    const int64_t query_elements = QUERY_BLOCK * plan.padded_width;
    const bool whole = has_whole_keys(plan);
    const int64_t keys_at = whole ? -first_key : (query_part * plan.heads + head) * plan.key_blocks;
    const auto sums_at = [&](Buffer<float> &own, Buffer<float> &all, int64_t key) {
        return (whole ? own : all).get() + (keys_at + key) * key_elements;
    };
    const auto key_sum = [&](int64_t key) { return sums_at(scratch.key_sums, partial.key, key); };
    const auto value_sum = [&](int64_t key) { return sums_at(scratch.value_sums, partial.value, key); };
    std::optional<dropout::Drawing> drawing;
    if (plan.shape.mask != nullptr) {
        drawing.emplace(*plan.shape.mask, head / plan.shape.heads);
    }
    const auto query_sum_at = [&](int64_t query) {
        return (key_part * plan.heads * plan.query_blocks + head * plan.query_blocks + query) * query_elements;
    };
    // 1. Sums of what sees nothing here, or is not seen.
    for (int64_t key = first_key; key < key_end; ++key) {
        const bool unseen = first_seeing(plan, key) >= query_end;
        if (unseen && plan.want_key) {
            std::fill_n(key_sum(key), key_elements, 0.0f);
        }
        if (unseen && plan.want_value) {
            std::fill_n(value_sum(key), key_elements, 0.0f);
        }
    }
    const int64_t blind = std::min(first_seeing(plan, first_key), query_end);
    for (int64_t query = first_query; query < blind && plan.want_query; ++query) {
        std::fill_n(&partial.query[query_sum_at(query)], query_elements, 0.0f);
    }
    // 2. All others. Queries outside: what is read again for each of them is the stretch's few keys and their sums, which
    // stay in a core's own cache. The other way around it would be all queries and theirs, three times as much. The sums
    // are the same to the bit: each is still added up in order.
    for (int64_t query = first_query; query < query_end; ++query) {
        for (int64_t key = first_key; key < key_end; ++key) {
            if (query < first_seeing(plan, key)) {
                break;
            }
            const int64_t query_sum = query_sum_at(query);
            accumulate(plan, backend, packed,
                       Pair{
                           .query_at = head * plan.query_blocks + query,
                           .key_at = head * plan.key_blocks + key,
                           .queries = block_at(query, QUERY_BLOCK, plan.shape.queries).count,
                           .keys = block_at(key, KEY_BLOCK, plan.shape.keys).count,
                           .hidden_from = plan.shape.causal ? query * QUERY_BLOCK - key * KEY_BLOCK + 1 : KEY_BLOCK,
                           .drawing = drawing ? &*drawing : nullptr,
                           .mask_row = head % plan.shape.heads * plan.shape.queries + query * QUERY_BLOCK,
                           .mask_key = key * KEY_BLOCK,
                           .grad_query = plan.want_query ? &partial.query[query_sum] : nullptr,
                           .grad_key = plan.want_key ? key_sum(key) : nullptr,
                           .grad_value = plan.want_value ? value_sum(key) : nullptr,
                           .first_query = query == std::max(first_query, first_seeing(plan, key)),
                           .first_key = key == first_key,
                       },
                       scratch);
        }
    }
    // 3. Keys that have all of their sums.
    for (int64_t key = first_key; whole && key < key_end; ++key) {
        if (plan.want_key) {
            store_keys(plan, key_sum(key), head, key, gradients.key, plan.shape.scale);
        }
        if (plan.want_value) {
            store_keys(plan, value_sum(key), head, key, gradients.value, factor_of_values(plan.shape));
        }
    }
}

RINGTUNE_AVX512 void store_rows(const float *source, int64_t source_stride, float factor, Rows<Bf16> target,
                                Block block, int64_t width) {
    for (int64_t token = 0; token < block.count; ++token) {
        Bf16 *row = target.row(block.first + token);
        for (int64_t column = 0; column < width; column += LANES) {
            const __mmask16 mask = width - column >= LANES ? 0xFFFF : (1u << (width - column)) - 1;
            const __m512 values = _mm512_loadu_ps(source + token * source_stride + column);
            const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(values, _mm512_set1_ps(factor)));
            _mm256_mask_storeu_epi16(row + column, mask, rounded);
        }
    }
}

// Adds the partial sums up and writes the gradients that are not written yet.
void finish(const Plan &plan, const Backend &backend, Partial &partial, const Gradients &gradients) {
    const Shape &shape = plan.shape;
    const int64_t query_tasks = plan.want_query ? plan.heads * plan.query_blocks : 0;
    const int64_t key_tasks = has_whole_keys(plan) ? 0 : plan.heads * plan.key_blocks;
    const int64_t query_elements = QUERY_BLOCK * plan.padded_width;
    const int64_t key_elements = plan.tall.padded * KEY_BLOCK;
    backend.parallel_for(query_tasks + key_tasks, [&](int64_t begin, int64_t end) {
        const auto finish_keys = [&](float *sums, int64_t task, const Output &target, float factor) {
            add_up(sums + task * key_elements, key_elements, plan.query_stretches, key_tasks * key_elements);
            store_keys(plan, sums + task * key_elements, task / plan.key_blocks, task % plan.key_blocks, target, factor);
        };
        for (int64_t task = begin; task < end; ++task) {
            if (task < query_tasks) {
                float *sums = &partial.query[task * query_elements];
                add_up(sums, query_elements, plan.key_stretches, query_tasks * query_elements);
                store_rows(sums, plan.padded_width, shape.scale,
                           rows_of(gradients.query, shape, task / plan.query_blocks),
                           block_at(task % plan.query_blocks, QUERY_BLOCK, shape.queries), shape.width);
                continue;
            }
            if (plan.want_key) {
                finish_keys(&partial.key[0], task - query_tasks, gradients.key, shape.scale);
            }
            if (plan.want_value) {
                finish_keys(&partial.value[0], task - query_tasks, gradients.value, factor_of_values(shape));
            }
        }
    });
}

} // namespace

void backward(const Shape &shape, const Backend &backend, Input query, Input key, Input value, Input output,
              const float *log_sum_exp, Input grad_output, Gradients gradients) {
    if (backend.gemm == gemm_amx && !shape.causal && shape.mask == nullptr) {
        return tiles::backward(shape, backend, query, key, value, output, log_sum_exp, grad_output,
                               gradients);
    }
    const Plan plan = plan_for(shape, backend, gradients);
    const Packed packed = pack(plan, backend, Operands{query, key, value, output, log_sum_exp, grad_output});
    const int64_t query_sums = plan.key_stretches * plan.heads * plan.query_blocks * QUERY_BLOCK * plan.padded_width;
    const int64_t key_sums = plan.query_stretches * plan.heads * plan.key_blocks * KEY_BLOCK * plan.tall.padded;
    Partial partial;
    partial.query = allocate<float>(plan.want_query ? query_sums : 0);
    partial.key = allocate<float>(plan.want_key && !has_whole_keys(plan) ? key_sums : 0);
    partial.value = allocate<float>(plan.want_value && !has_whole_keys(plan) ? key_sums : 0);
    const int64_t tasks = plan.heads * plan.key_stretches * plan.query_stretches;
    backend.parallel_for(tasks, [&](int64_t begin, int64_t end) {
        const Multiplying multiplying(backend);
        Scratch scratch(plan);
        for (int64_t task = begin; task < end; ++task) {
            accumulate_stretch(plan, backend, packed, partial, gradients, task, scratch);
        }
    });
    finish(plan, backend, partial, gradients);
}

} // namespace ringtune::flash
