// The formulas are those of attention_backward.cpp. Scores lie as [keys][queries]: a row of probabilities, or of the
// scores' gradients, is then a row of the left operand that dV, or dK, is a product of, and what belongs to a query runs
// down a vector's lane.
//
// A task takes a stretch of one head's queries and one of its keys and leaves partial sums, which a last pass adds up in
// the tasks' order.

#include "attention_tiles.h"

namespace ringtune::flash::tiles {

namespace {

// Blocks of queries whose probabilities, against one block of keys, are multiplied at once. With 8, a tile of a block
// of keys' sums is loaded and stored once for 8 products; what 16 write would be 64 KB, more than a core's nearest cache.
constexpr int64_t GROUP = 8;
// As attention_backward.cpp has them, for 28 threads and more.
constexpr int64_t TASKS = 96;
constexpr int64_t KEY_STRETCHES = 6;
constexpr int64_t QUERY_STRETCHES = 16;
// Blocks of keys that a stretch has at least, where there are as many: each has partial sums of dQ.
constexpr int64_t LEAST_STRETCH = 8;

struct Plan {
    Shape shape;
    int64_t heads; // of the whole batch
    int64_t depth; // tiles that a product over the width takes
    int64_t wide;  // tiles that the width takes as columns, or as rows
    bool want_query, want_key, want_value;
    int64_t query_blocks, key_blocks;       // of 32
    int64_t query_stretch, key_stretch;     // blocks in one
    int64_t query_stretches, key_stretches;

    int64_t query_sums() const { return wide * 2 * SUMS; } // elements of a block's dQ: [wide][2]
    int64_t key_sums() const { return 2 * wide * SUMS; }   // of its dK, or dV: [2][wide]
};

Plan plan_for(const Shape &shape, const Gradients &gradients) {
    Plan plan{};
    plan.shape = shape;
    plan.heads = shape.batches * shape.heads;
    plan.depth = divide_up(shape.width, DEPTH);
    plan.wide = divide_up(shape.width, SIDE);
    plan.want_query = gradients.query.data != nullptr;
    plan.want_key = gradients.key.data != nullptr;
    plan.want_value = gradients.value.data != nullptr;
    plan.query_blocks = divide_up(shape.queries, BLOCK);
    plan.key_blocks = divide_up(shape.keys, BLOCK);
    // By the shape of a sample alone: neither the batch nor the threads move a bit of it.
    const int64_t tasks = divide_up(TASKS, shape.heads);
    plan.key_stretch = std::max(divide_up(plan.key_blocks, std::min(KEY_STRETCHES, tasks)), LEAST_STRETCH);
    plan.key_stretches = divide_up(plan.key_blocks, plan.key_stretch);
    const int64_t parts = plan.key_stretches > 1 ? divide_up(tasks, plan.key_stretches) : QUERY_STRETCHES;
    plan.query_stretch = round_up(divide_up(plan.query_blocks, parts), GROUP / 2);
    plan.query_stretches = divide_up(plan.query_blocks, plan.query_stretch);
    return plan;
}

// The arguments of a backward pass.
struct Operands {
    Input query, key, value, output;
    const float *log_sum_exp;
    Input grad_output;
};

// The operands of all heads, block by block.
struct Packed {
    Buffer<Bf16> queries, gradients;             // right operands over the width, [2][depth]
    Buffer<Bf16> query_tokens, gradient_tokens;  // right operands over the tokens, [wide]
    Buffer<Bf16> keys, values;                   // left operands over the width, [2][depth]
    Buffer<Bf16> key_tokens;                     // left operands over the tokens, [wide]
    Buffer<float> log_sum_exp;                   // [32], in base 2; huge past the end, so that probabilities are 0 there
    Buffer<float> output_dot;                    // [32], rowsum(O * G)
};

void pack_queries(const Plan &plan, const Operands &operands, int64_t task, Packed &packed) {
    const Shape &shape = plan.shape;
    const int64_t head = task / plan.query_blocks, half = plan.depth * VALUES;
    const Block block = block_at(task % plan.query_blocks, BLOCK, shape.queries);
    const auto pack_both = [&](Rows<const Bf16> rows, Bf16 *right, Bf16 *tokens) {
        pack_right(rows, block.first, std::min(SIDE, block.count), shape.width, right + task * 2 * half);
        pack_right(rows, block.first + SIDE, block.count - SIDE, shape.width, right + task * 2 * half + half);
        pack_tokens(rows, block.first, block.count, shape.width, tokens + task * plan.wide * VALUES);
    };
    const auto output = rows_of(operands.output, shape, head), gradient = rows_of(operands.grad_output, shape, head);
    pack_both(rows_of(operands.query, shape, head), &packed.queries[0], &packed.query_tokens[0]);
    pack_both(gradient, &packed.gradients[0], &packed.gradient_tokens[0]);
    for (int64_t token = 0; token < BLOCK; ++token) {
        const bool inside = token < block.count;
        packed.log_sum_exp[task * BLOCK + token] =
            inside ? operands.log_sum_exp[head * shape.queries + block.first + token] : -LOWEST_SCORE;
        packed.output_dot[task * BLOCK + token] =
            inside ? dot(output.row(block.first + token), gradient.row(block.first + token), shape.width) : 0.0f;
    }
}

void pack_keys(const Plan &plan, const Operands &operands, int64_t task, Packed &packed) {
    const Shape &shape = plan.shape;
    const int64_t head = task / plan.key_blocks, half = plan.depth * VALUES;
    const Block block = block_at(task % plan.key_blocks, BLOCK, shape.keys);
    const auto pack_halves = [&](Rows<const Bf16> rows, Bf16 *left) {
        pack_left(rows, block.first, std::min(SIDE, block.count), shape.width, left + task * 2 * half);
        pack_left(rows, block.first + SIDE, block.count - SIDE, shape.width, left + task * 2 * half + half);
    };
    const auto keys = rows_of(operands.key, shape, head);
    pack_halves(keys, &packed.keys[0]);
    pack_halves(rows_of(operands.value, shape, head), &packed.values[0]);
    pack_tokens_left(keys, block.first, block.count, shape.width, &packed.key_tokens[task * plan.wide * VALUES]);
}

Packed pack(const Plan &plan, const Backend &backend, const Operands &operands) {
    const int64_t query_tasks = plan.heads * plan.query_blocks, key_tasks = plan.heads * plan.key_blocks;
    const int64_t over_width = 2 * plan.depth * VALUES, over_tokens = plan.wide * VALUES;
    Packed packed;
    packed.queries = allocate<Bf16>(query_tasks * over_width);
    packed.gradients = allocate<Bf16>(query_tasks * over_width);
    packed.query_tokens = allocate<Bf16>(query_tasks * over_tokens);
    packed.gradient_tokens = allocate<Bf16>(query_tasks * over_tokens);
    packed.keys = allocate<Bf16>(key_tasks * over_width);
    packed.values = allocate<Bf16>(key_tasks * over_width);
    packed.key_tokens = allocate<Bf16>(key_tasks * over_tokens);
    packed.log_sum_exp = allocate<float>(query_tasks * BLOCK);
    packed.output_dot = allocate<float>(query_tasks * BLOCK);
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

// Partial sums, block by block: dQ of each stretch of keys, dK and dV of each stretch of queries.
struct Partial {
    Buffer<float> query; // [key_stretches][heads][query_blocks][wide][2]
    Buffer<float> key;   // [query_stretches][heads][key_blocks][2][wide]
    Buffer<float> value; // as key
};

// What a thread works in: a group of blocks of queries against one block of keys after the other.
struct Scratch {
    Buffer<float> scores = allocate<float>(4 * SUMS);               // [2][2], of one block of queries
    Buffer<float> score_gradients = allocate<float>(4 * SUMS);      // as scores
    Buffer<Bf16> probabilities = allocate<Bf16>(GROUP * 2 * VALUES); // left operands over the queries, [GROUP][2]
    Buffer<Bf16> gradients = allocate<Bf16>(GROUP * 2 * VALUES);     // as probabilities
    Buffer<Bf16> gradient_pairs;                                     // right operands over the keys, [keys][GROUP][2]

    explicit Scratch(const Plan &plan) : gradient_pairs(allocate<Bf16>(plan.key_stretch * GROUP * 2 * VALUES)) {}
};

// What the scores of the next block of queries are made of: two operands of one size.
struct Next {
    const Bf16 *queries, *gradients;
    int64_t lines; // of 64 bytes, for each pair of rows of a block of scores
};

// Tiles are loaded from a core's larger cache more slowly than from the nearest, and vectors leave time to fetch them.
RINGTUNE_AVX512 static inline void fetch_part(const Next &next, int64_t part) {
    const int64_t line = LINE / int64_t(sizeof(Bf16));
    for (int64_t at = part * next.lines; at < (part + 1) * next.lines; ++at) {
        _mm_prefetch(next.queries + at * line, _MM_HINT_T0);
        _mm_prefetch(next.gradients + at * line, _MM_HINT_T0);
    }
}

// From 32 x 32 scores and their dP to the operands P and dS.
RINGTUNE_AVX512 void softmax_gradient(const float *scores, const float *score_gradients, const float *log_sum_exp,
                                      const float *output_dot, float scale, Bf16 *probabilities, Bf16 *gradients,
                                      Bf16 *gradient_pairs, const Next &next) {
    const __m512 factor = _mm512_set1_ps(scale);
    const __m512 log[2] = {_mm512_load_ps(log_sum_exp), _mm512_load_ps(log_sum_exp + SIDE)};
    const __m512 dots[2] = {_mm512_load_ps(output_dot), _mm512_load_ps(output_dot + SIDE)};
    for (int64_t key = 0; key < BLOCK; key += 2) {
        fetch_part(next, key / 2);
        __m512i rows[2];
#pragma GCC unroll 2
        for (int64_t each = 0; each < 2; ++each) {
            const int64_t at = key / SIDE * 2 * SUMS + (key + each) % SIDE * SIDE;
            const __m512 left = short_exp2_of(_mm512_fmsub_ps(_mm512_load_ps(scores + at), factor, log[0]));
            const __m512 right = short_exp2_of(_mm512_fmsub_ps(_mm512_load_ps(scores + SUMS + at), factor, log[1]));
            _mm512_store_si512(probabilities + (key + each) * DEPTH, to_bf16(left, right));
            rows[each] = to_bf16(_mm512_mul_ps(left, _mm512_sub_ps(_mm512_load_ps(score_gradients + at), dots[0])),
                                 _mm512_mul_ps(right, _mm512_sub_ps(_mm512_load_ps(score_gradients + SUMS + at), dots[1])));
            _mm512_store_si512(gradients + (key + each) * DEPTH, rows[each]);
        }
        store_pairs(rows[0], rows[1], gradient_pairs + key / 2 * DEPTH);
    }
}

// A group of blocks of queries, or what is left of them, against the blocks of keys of one stretch.
struct Group {
    int64_t query_at, queries; // the first block's place among those of all heads, and how many
    int64_t key_at, keys;
    int64_t tokens; // keys from the first on
    float *grad_query, *grad_key, *grad_value;
    bool first; // sums of keys begin
};

RINGTUNE_TILES void accumulate(const Plan &plan, const Packed &packed, const Group &group, Scratch &scratch) {
    const int64_t over_width = 2 * plan.depth * VALUES, over_tokens = plan.wide * VALUES;
    float *scores = &scratch.scores[0], *score_gradients = &scratch.score_gradients[0];
    const auto make_scores = [&](int64_t index) {
        const int64_t query = group.query_at + index % group.queries, key = index / group.queries;
        multiply_scores(&packed.keys[(group.key_at + key) * over_width], &packed.queries[query * over_width],
                        plan.depth, scores);
        hide_tokens_from(group.tokens - key * BLOCK, scores);
        multiply_scores(&packed.values[(group.key_at + key) * over_width], &packed.gradients[query * over_width],
                        plan.depth, score_gradients);
    };
    const auto add_to_keys = [&](int64_t key, const Bf16 *left, const Bf16 *tokens, float *sums) {
        add_wide_products({.left = left,
                           .left_row = VALUES,
                           .left_step = 2 * VALUES,
                           .right = tokens + group.query_at * over_tokens,
                           .right_step = over_tokens,
                           .steps = group.queries,
                           .sums = sums + key * plan.key_sums(),
                           .sums_row = plan.wide * SUMS,
                           .begins = group.first},
                          plan.wide);
    };
    const float scale = plan.shape.scale * LOG2_E;
    make_scores(0);
    for (int64_t index = 0; index < group.queries * group.keys; ++index) {
        const int64_t query = index % group.queries, key = index / group.queries;
        const int64_t token = (group.query_at + query) * BLOCK;
        const int64_t following = (group.query_at + (index + 1) % group.queries) * over_width;
        softmax_gradient(scores, score_gradients, &packed.log_sum_exp[token], &packed.output_dot[token], scale,
                         &scratch.probabilities[query * 2 * VALUES], &scratch.gradients[query * 2 * VALUES],
                         &scratch.gradient_pairs[index * 2 * VALUES],
                         {&packed.queries[following], &packed.gradients[following], 2 * plan.depth});
        // Before the products of what was just written: it takes a while until tiles can be loaded from there.
        if (index + 1 < group.queries * group.keys) {
            make_scores(index + 1);
        }
        if (query + 1 == group.queries && plan.want_value) {
            add_to_keys(key, &scratch.probabilities[0], &packed.gradient_tokens[0], group.grad_value);
        }
        if (query + 1 == group.queries && plan.want_key) {
            add_to_keys(key, &scratch.gradients[0], &packed.query_tokens[0], group.grad_key);
        }
    }
    for (int64_t query = 0; query < group.queries && plan.want_query; ++query) {
        add_all_tall_products({.left = &packed.key_tokens[group.key_at * over_tokens],
                               .left_row = VALUES,
                               .left_step = over_tokens,
                               .right = &scratch.gradient_pairs[query * 2 * VALUES],
                               .right_step = group.queries * 2 * VALUES,
                               .steps = group.keys,
                               .sums = group.grad_query + query * plan.query_sums(),
                               .sums_row = 2 * SUMS,
                               .begins = true},
                              plan.wide);
    }
}

// All blocks of one stretch of queries and one of keys.
void accumulate_stretch(const Plan &plan, const Packed &packed, Partial &partial, int64_t task, Scratch &scratch) {
    const int64_t query_part = task % plan.query_stretches;
    const int64_t key_part = task / plan.query_stretches % plan.key_stretches;
    const int64_t head = task / plan.query_stretches / plan.key_stretches;
    const int64_t first_query = query_part * plan.query_stretch, first_key = key_part * plan.key_stretch;
    const int64_t query_end = std::min(first_query + plan.query_stretch, plan.query_blocks);
    const int64_t key_end = std::min(first_key + plan.key_stretch, plan.key_blocks);
    const int64_t key_at = head * plan.key_blocks + first_key;
    const int64_t key_sum = (query_part * plan.heads * plan.key_blocks + key_at) * plan.key_sums();
    for (int64_t query = first_query; query < query_end; query += GROUP) {
        const int64_t query_at = head * plan.query_blocks + query;
        const int64_t query_sum = (key_part * plan.heads * plan.query_blocks + query_at) * plan.query_sums();
        accumulate(plan, packed,
                   {.query_at = query_at,
                    .queries = std::min(GROUP, query_end - query),
                    .key_at = key_at,
                    .keys = key_end - first_key,
                    .tokens = plan.shape.keys - first_key * BLOCK,
                    .grad_query = plan.want_query ? &partial.query[query_sum] : nullptr,
                    .grad_key = plan.want_key ? &partial.key[key_sum] : nullptr,
                    .grad_value = plan.want_value ? &partial.value[key_sum] : nullptr,
                    .first = query == first_query},
                   scratch);
    }
}

// [2][wide] tiles of tokens.
RINGTUNE_AVX512 void store_keys(const Plan &plan, const float *sums, float factor, Rows<Bf16> target, Block block) {
    for (int64_t token = 0; token < block.count; ++token) {
        const float *row = sums + token / SIDE * plan.wide * SUMS + token % SIDE * SIDE;
        for (int64_t tile = 0; tile < plan.wide; ++tile) {
            store_row(_mm512_load_ps(row + tile * SUMS), factor, target.row(block.first + token), tile * SIDE,
                      plan.shape.width);
        }
    }
}

// Adds the partial sums up and writes the gradients.
void finish(const Plan &plan, const Backend &backend, Partial &partial, const Gradients &gradients) {
    const Shape &shape = plan.shape;
    const int64_t query_tasks = plan.want_query ? plan.heads * plan.query_blocks : 0;
    const int64_t key_tasks = plan.heads * plan.key_blocks;
    backend.parallel_for(query_tasks + key_tasks, [&](int64_t begin, int64_t end) {
        float factors[BLOCK];
        std::fill_n(factors, BLOCK, shape.scale);
        const auto finish_keys = [&](float *sums, int64_t task, const Output &target, float factor) {
            sums += task * plan.key_sums();
            add_up(sums, plan.key_sums(), plan.query_stretches, key_tasks * plan.key_sums());
            store_keys(plan, sums, factor, rows_of(target, shape, task / plan.key_blocks),
                       block_at(task % plan.key_blocks, BLOCK, shape.keys));
        };
        for (int64_t task = begin; task < end; ++task) {
            if (task < query_tasks) {
                float *sums = &partial.query[task * plan.query_sums()];
                add_up(sums, plan.query_sums(), plan.key_stretches, query_tasks * plan.query_sums());
                store_queries(sums, factors, rows_of(gradients.query, shape, task / plan.query_blocks),
                              block_at(task % plan.query_blocks, BLOCK, shape.queries), shape.width);
                continue;
            }
            if (plan.want_key) {
                finish_keys(&partial.key[0], task - query_tasks, gradients.key, shape.scale);
            }
            if (plan.want_value) {
                finish_keys(&partial.value[0], task - query_tasks, gradients.value, 1.0f);
            }
        }
    });
}

} // namespace

void backward(const Shape &shape, const Backend &backend, Input query, Input key, Input value, Input output,
              const float *log_sum_exp, Input grad_output, Gradients gradients) {
    const Plan plan = plan_for(shape, gradients);
    const Packed packed = pack(plan, backend, Operands{query, key, value, output, log_sum_exp, grad_output});
    const int64_t query_sums = plan.key_stretches * plan.heads * plan.query_blocks * plan.query_sums();
    const int64_t key_sums = plan.query_stretches * plan.heads * plan.key_blocks * plan.key_sums();
    Partial partial;
    partial.query = allocate<float>(plan.want_query ? query_sums : 0);
    partial.key = allocate<float>(plan.want_key ? key_sums : 0);
    partial.value = allocate<float>(plan.want_value ? key_sums : 0);
    const int64_t tasks = plan.heads * plan.key_stretches * plan.query_stretches;
    backend.parallel_for(tasks, [&](int64_t begin, int64_t end) {
        const Multiplying multiplying(backend);
        Scratch scratch(plan);
        for (int64_t task = begin; task < end; ++task) {
            accumulate_stretch(plan, packed, partial, task, scratch);
        }
    });
    finish(plan, backend, partial, gradients);
}

} // namespace ringtune::flash::tiles
