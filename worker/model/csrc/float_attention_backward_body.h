// The gradient of attention in fp32: the method of attention_backward.cpp, with scores as [queries][keys].

namespace {

// Into how many tasks the heads of one sample are split, and how many of them share a head's keys, or, where these are few,
// its queries: each has partial sums of the other's gradients.
constexpr int64_t TASKS = 64;
constexpr int64_t KEY_STRETCHES = 6;
constexpr int64_t QUERY_STRETCHES = 8;

// How heads are split, and how wide gradients of queries are in partial sums.
struct Plan {
    Shape shape;
    int64_t heads; // of the whole batch
    int64_t query_blocks, key_blocks;
    int64_t query_stretch, key_stretch; // blocks in one
    int64_t query_stretches, key_stretches;
    int64_t padded_width;
};

// By the shape of a sample alone: neither the batch nor the threads move a bit of it.
Plan plan_for(const Shape &shape) {
    Plan plan{};
    plan.shape = shape;
    plan.heads = shape.batches * shape.heads;
    plan.query_blocks = divide_up(shape.queries, BLOCK);
    plan.key_blocks = divide_up(shape.keys, BLOCK);
    const int64_t tasks = divide_up(TASKS, shape.heads);
    plan.key_stretch = divide_up(plan.key_blocks, std::min(KEY_STRETCHES, tasks));
    plan.key_stretches = divide_up(plan.key_blocks, plan.key_stretch);
    const int64_t parts = plan.key_blocks > 2 ? divide_up(tasks, plan.key_stretches) : QUERY_STRETCHES;
    plan.query_stretch = divide_up(plan.query_blocks, parts);
    plan.query_stretches = divide_up(plan.query_blocks, plan.query_stretch);
    plan.padded_width = round_up(shape.width, STRIP);
    return plan;
}

// The operands of all heads, block by block, in the layouts that products want.
struct Packed {
    Buffer<float> query_rows, gradient_rows;       // left of scores and dP: [BLOCK][width]
    Buffer<float> query_columns, gradient_columns; // left of dK and dV: [width][BLOCK]
    Buffer<float> key_columns, value_columns;      // right of scores and dP: strips [width][STRIP]
    Buffer<float> key_rows;                        // right of dQ: [BLOCK][padded_width]
    Buffer<float> output_dot;                      // rowsum(O * G), [BLOCK]
};

// The sum of the products of two rows, in the order in which dP is added up: with one key both are the same, and a gradient that
// is zero comes out as zero.
RINGTUNE_TARGET float dot(const float *left, const float *right, int64_t width) {
    float sum = 0.0f;
    for (int64_t at = 0; at < width; ++at) {
        sum = __builtin_fmaf(left[at], right[at], sum);
    }
    return sum;
}

void pack_queries(const Plan &plan, const Attended &attended, int64_t task, Packed &packed) {
    const int64_t head = task / plan.query_blocks, first = task % plan.query_blocks * BLOCK, width = plan.shape.width;
    const int64_t count = std::min(BLOCK, plan.shape.queries - first);
    const Rows query = flash::rows_of(attended.query, plan.shape, head), output = flash::rows_of(attended.output, plan.shape, head);
    const Rows gradient = flash::rows_of(attended.grad_output, plan.shape, head);
    const auto at = [&](Buffer<float> &buffer) { return &buffer[task * BLOCK * width]; };
    for (int64_t token = 0; token < count; ++token) {
        const float *o = output.row(first + token), *g = gradient.row(first + token);
        std::copy_n(query.row(first + token), width, at(packed.query_rows) + token * width);
        std::copy_n(g, width, at(packed.gradient_rows) + token * width);
        packed.output_dot[task * BLOCK + token] = dot(o, g, width);
    }
    turn(matrix_of(query, first), count, width, 1.0f, {at(packed.query_columns), BLOCK});
    turn(matrix_of(gradient, first), count, width, 1.0f, {at(packed.gradient_columns), BLOCK});
}

void pack_keys(const Plan &plan, const Attended &attended, int64_t task, Packed &packed) {
    const int64_t head = task / plan.key_blocks, first = task % plan.key_blocks * BLOCK, width = plan.shape.width;
    const int64_t count = std::min(BLOCK, plan.shape.keys - first);
    const Rows key = flash::rows_of(attended.key, plan.shape, head), value = flash::rows_of(attended.value, plan.shape, head);
    turn_into_strips(matrix_of(key, first), count, width, &packed.key_columns[task * BLOCK * width]);
    turn_into_strips(matrix_of(value, first), count, width, &packed.value_columns[task * BLOCK * width]);
    for (int64_t token = 0; token < count; ++token) {
        float *to = &packed.key_rows[(task * BLOCK + token) * plan.padded_width];
        std::fill(std::copy_n(key.row(first + token), width, to), to + plan.padded_width, 0.0f);
    }
}

Packed pack(const Plan &plan, const Runner &runner, const Attended &attended) {
    const int64_t query_tasks = plan.heads * plan.query_blocks, key_tasks = plan.heads * plan.key_blocks;
    const int64_t of_queries = query_tasks * BLOCK * plan.shape.width, of_keys = key_tasks * BLOCK * plan.shape.width;
    Packed packed;
    for (Buffer<float> *buffer : {&packed.query_rows, &packed.gradient_rows, &packed.query_columns, &packed.gradient_columns}) {
        *buffer = allocate<float>(of_queries);
    }
    packed.key_columns = allocate<float>(of_keys);
    packed.value_columns = allocate<float>(of_keys);
    packed.key_rows = allocate<float>(key_tasks * BLOCK * plan.padded_width);
    packed.output_dot = allocate<float>(query_tasks * BLOCK);
    runner.backend.parallel_for(query_tasks + key_tasks, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
            if (task < query_tasks) {
                pack_queries(plan, attended, task, packed);
            } else {
                pack_keys(plan, attended, task - query_tasks, packed);
            }
        }
    });
    return packed;
}

// Sums of each stretch, block by block; what several stretches have is added up at the end.
struct Sums {
    Buffer<float> query;      // [key_stretches][heads][query_blocks][BLOCK][padded_width]
    Buffer<float> key, value; // [query_stretches][heads][key_blocks][width][BLOCK]
};

// One block of queries against one block of keys.
struct Pair {
    int64_t query_at, key_at; // the blocks' places among those of all heads
    int64_t queries, keys;
    const float *log_sum_exp; // of the queries
    float *grad_query, *grad_key, *grad_value; // null where not wanted
    bool first_query, first_key;
};

// From scores and dP to P and dS, in place: [queries][BLOCK] of both; `keys`: a multiple of LANES.
RINGTUNE_TARGET void softmax_gradient(const Pair &pair, int64_t keys, float scale, const float *output_dot, float *scores,
                                      float *slopes) {
    const Vector factor = all(scale);
    for (int64_t query = 0; query < pair.queries; ++query) {
        const Vector log = all(pair.log_sum_exp[query]), dot = all(output_dot[query]);
        for (int64_t at = query * BLOCK; at < query * BLOCK + keys; at += LANES) {
            const Vector probability = small_exp2_of(times_minus(load(scores + at), factor, log));
            store(scores + at, probability);
            store(slopes + at, times(probability, minus(load(slopes + at), dot)));
        }
    }
}

// `scores`, `slopes`: room for [BLOCK][BLOCK].
void accumulate(const Plan &plan, const Packed &packed, const Pair &pair, float *scores, float *slopes) {
    const int64_t width = plan.shape.width, queries_at = pair.query_at * BLOCK * width, keys_at = pair.key_at * BLOCK * width;
    const int64_t keys = round_up(pair.keys, STRIP);
    for (int64_t key = 0; key < keys; key += STRIP) {
        multiply_strip(pair.queries, {&packed.query_rows[queries_at], width},
                       {&packed.key_columns[keys_at + key * width], STRIP}, width, true, {scores + key, BLOCK}, nullptr);
        multiply_strip(pair.queries, {&packed.gradient_rows[queries_at], width},
                       {&packed.value_columns[keys_at + key * width], STRIP}, width, true, {slopes + key, BLOCK}, nullptr);
    }
    softmax_gradient(pair, keys, plan.shape.scale * flash::LOG2_E, &packed.output_dot[pair.query_at * BLOCK], scores, slopes);
    // Columns behind the last key have numbers that nobody stores.
    for (int64_t key = 0; key < keys; key += STRIP) {
        if (pair.grad_value != nullptr) {
            multiply_strip(width, {&packed.gradient_columns[queries_at], BLOCK}, {scores + key, BLOCK}, pair.queries,
                           pair.first_query, {pair.grad_value + key, BLOCK}, nullptr);
        }
        if (pair.grad_key != nullptr) {
            multiply_strip(width, {&packed.query_columns[queries_at], BLOCK}, {slopes + key, BLOCK}, pair.queries,
                           pair.first_query, {pair.grad_key + key, BLOCK}, nullptr);
        }
    }
    for (int64_t column = 0; column < plan.padded_width && pair.grad_query != nullptr; column += STRIP) {
        multiply_strip(pair.queries, {slopes, BLOCK},
                       {&packed.key_rows[pair.key_at * BLOCK * plan.padded_width + column], plan.padded_width}, pair.keys,
                       pair.first_key, {pair.grad_query + column, plan.padded_width}, nullptr);
    }
}

// All pairs of blocks of one stretch of queries and one of keys. Queries outside: the stretch's keys and their sums stay in a
// core's own cache.
void accumulate_stretch(const Plan &plan, const Packed &packed, const float *log_sum_exp, Sums &sums, int64_t task,
                        float *scores, float *slopes) {
    const int64_t query_part = task % plan.query_stretches, key_part = task / plan.query_stretches % plan.key_stretches;
    const int64_t head = task / plan.query_stretches / plan.key_stretches;
    const int64_t first_query = query_part * plan.query_stretch, first_key = key_part * plan.key_stretch;
    const int64_t query_end = std::min(first_query + plan.query_stretch, plan.query_blocks);
    const int64_t key_end = std::min(first_key + plan.key_stretch, plan.key_blocks);
    const auto part = [](Buffer<float> &buffer, int64_t block, int64_t elements) {
        return buffer ? &buffer[block * elements] : nullptr;
    };
    for (int64_t query = first_query; query < query_end; ++query) {
        for (int64_t key = first_key; key < key_end; ++key) {
            const int64_t query_sum = (key_part * plan.heads + head) * plan.query_blocks + query;
            const int64_t key_sum = (query_part * plan.heads + head) * plan.key_blocks + key;
            const Pair pair{
                .query_at = head * plan.query_blocks + query,
                .key_at = head * plan.key_blocks + key,
                .queries = std::min(BLOCK, plan.shape.queries - query * BLOCK),
                .keys = std::min(BLOCK, plan.shape.keys - key * BLOCK),
                .log_sum_exp = log_sum_exp + head * plan.shape.queries + query * BLOCK,
                .grad_query = part(sums.query, query_sum, BLOCK * plan.padded_width),
                .grad_key = part(sums.key, key_sum, BLOCK * plan.shape.width),
                .grad_value = part(sums.value, key_sum, BLOCK * plan.shape.width),
                .first_query = query == first_query,
                .first_key = key == first_key,
            };
            accumulate(plan, packed, pair, scores, slopes);
        }
    }
}

// Adds the stretches' sums up, in order, and writes the gradients.
void finish(const Plan &plan, const Runner &runner, Sums &sums, const Gradients &gradients) {
    const int64_t query_tasks = plan.heads * plan.query_blocks, key_tasks = plan.heads * plan.key_blocks;
    const int64_t width = plan.shape.width, query_elements = BLOCK * plan.padded_width, key_elements = BLOCK * width;
    const auto finish_keys = [&](Buffer<float> &buffer, int64_t task, const View<float> &target, float factor) {
        if (!buffer) {
            return;
        }
        const int64_t first = task % plan.key_blocks * BLOCK;
        const auto rows = flash::rows_of(target, plan.shape, task / plan.key_blocks);
        flash::add_up(&buffer[task * key_elements], key_elements, plan.query_stretches, key_tasks * key_elements);
        turn({&buffer[task * key_elements], BLOCK}, width, std::min(BLOCK, plan.shape.keys - first), factor,
             {rows.row(first), rows.stride});
    };
    runner.backend.parallel_for(query_tasks + key_tasks, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
            if (task >= query_tasks) {
                finish_keys(sums.key, task - query_tasks, gradients.key, plan.shape.scale);
                finish_keys(sums.value, task - query_tasks, gradients.value, 1.0f);
                continue;
            }
            if (!sums.query) {
                continue;
            }
            float *all = &sums.query[task * query_elements];
            flash::add_up(all, query_elements, plan.key_stretches, query_tasks * query_elements);
            const auto rows = flash::rows_of(gradients.query, plan.shape, task / plan.query_blocks);
            const int64_t first = task % plan.query_blocks * BLOCK, count = std::min(BLOCK, plan.shape.queries - first);
            for (int64_t token = 0; token < count; ++token) {
                for (int64_t column = 0; column < width; ++column) {
                    rows.row(first + token)[column] = plan.shape.scale * all[token * plan.padded_width + column];
                }
            }
        }
    });
}

} // namespace

void attend_back(const Shape &shape, const Runner &runner, const Attended &attended, const Gradients &gradients) {
    const Plan plan = plan_for(shape);
    const Packed packed = pack(plan, runner, attended);
    const int64_t of_queries = plan.key_stretches * plan.heads * plan.query_blocks * BLOCK * plan.padded_width;
    const int64_t of_keys = plan.query_stretches * plan.heads * plan.key_blocks * BLOCK * shape.width;
    Sums sums;
    const auto wanted = [](const View<float> &gradient, int64_t elements) {
        return gradient.data == nullptr ? Buffer<float>() : allocate<float>(elements);
    };
    sums.query = wanted(gradients.query, of_queries);
    sums.key = wanted(gradients.key, of_keys);
    sums.value = wanted(gradients.value, of_keys);
    runner.backend.parallel_for(plan.heads * plan.key_stretches * plan.query_stretches, [&](int64_t begin, int64_t end) {
        const Multiplying multiplying(runner.backend);
        const Buffer<float> scores = allocate<float>(BLOCK * BLOCK), slopes = allocate<float>(BLOCK * BLOCK);
        for (int64_t task = begin; task < end; ++task) {
            accumulate_stretch(plan, packed, attended.log_sum_exp, sums, task, &scores[0], &slopes[0]);
        }
    });
    finish(plan, runner, sums, gradients);
}
