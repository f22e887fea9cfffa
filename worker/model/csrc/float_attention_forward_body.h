// Attention in fp32 by the method of attention_kernels.h. Scores lie as [keys][STRIP queries] strips,
// so that maxima and sums of a query run down a vector's lane, and what follows takes them as they lie.

namespace {

constexpr int64_t KEY_BLOCK = 2 * BLOCK;

// Keys and values of all heads: keys token by token, values block by block and turned, so that both are left operands.
struct PackedKeys {
    int64_t blocks;       // of a head
    Buffer<float> keys;   // [heads][keys][width]
    Buffer<float> values; // [heads][blocks][width][KEY_BLOCK]
};

PackedKeys pack(const Shape &shape, const Runner &runner, View<const float> key, View<const float> value) {
    const int64_t heads = shape.batches * shape.heads, blocks = divide_up(shape.keys, KEY_BLOCK);
    PackedKeys packed{blocks, allocate<float>(heads * shape.keys * shape.width),
                      allocate<float>(heads * blocks * shape.width * KEY_BLOCK)};
    runner.backend.parallel_for(heads * blocks, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
            const int64_t head = task / blocks, first = task % blocks * KEY_BLOCK;
            const int64_t count = std::min(KEY_BLOCK, shape.keys - first);
            const Rows keys = flash::rows_of(key, shape, head), values = flash::rows_of(value, shape, head);
            for (int64_t token = first; token < first + count; ++token) {
                std::copy_n(keys.row(token), shape.width, &packed.keys[(head * shape.keys + token) * shape.width]);
            }
            turn(matrix_of(values, first), count, shape.width, 1.0f,
                 {&packed.values[task * shape.width * KEY_BLOCK], KEY_BLOCK});
        }
    });
    return packed;
}

// What a thread works in: a block of queries, strip by strip.
struct Scratch {
    Buffer<float> query;  // [strips][width][STRIP]
    Buffer<float> scores; // of one strip: [KEY_BLOCK][STRIP]
    Buffer<float> output; // [strips][width][STRIP]
    float maximum[BLOCK]; // of the scores so far, times the scale and log2(e)
    float sum[BLOCK];     // of 2^(score - maximum)

    explicit Scratch(int64_t width)
        : query(allocate<float>(BLOCK * width)), scores(allocate<float>(KEY_BLOCK * STRIP)),
          output(allocate<float>(BLOCK * width)) {}
};

// Scores of LANES queries become probabilities relative to the maximum so far; a maximum that grew scales down what was added
// up before it. `scores`, `output`: [..][STRIP], from the first of them on.
RINGTUNE_TARGET void online_softmax(float *scores, int64_t keys, float scale, float *output, int64_t width, float *so_far,
                                    float *sum) {
    const Vector factor = all(scale);
    Vector even = all(flash::LOWEST_SCORE), odd = even;
    int64_t key = 0;
    for (; key + 2 <= keys; key += 2) {
        even = greater(even, load(scores + key * STRIP));
        odd = greater(odd, load(scores + (key + 1) * STRIP));
    }
    if (key < keys) {
        even = greater(even, load(scores + key * STRIP));
    }
    const Vector before = load(so_far), highest = times(greater(even, odd), factor);
    const Vector maximum = greater(before, highest);
    const Vector correction = small_exp2_of(minus(before, maximum));
    store(so_far, maximum);
    Vector total = times(load(sum), correction);
    for (key = 0; key < keys; ++key) {
        const Vector probability = small_exp2_of(times_minus(load(scores + key * STRIP), factor, maximum));
        total = plus(total, probability);
        store(scores + key * STRIP, probability);
    }
    store(sum, total);
    if (any_differs(correction, all(1.0f))) {
        for (int64_t row = 0; row < width; ++row) {
            store(output + row * STRIP, times(load(output + row * STRIP), correction));
        }
    }
}

// Every row of a strip, [width][STRIP], by the sums.
RINGTUNE_TARGET void divide(float *strip, int64_t width, const float *sums) {
    const Vector factor = reciprocal(load(sums)), more = reciprocal(load(sums + LANES));
    for (float *row = strip; row < strip + width * STRIP; row += STRIP) {
        store(row, times(load(row), factor));
        store(row + LANES, times(load(row + LANES), more));
    }
}

// Attention of one block of queries to the keys of its head; the result stays in the scratch.
void attend_block(const Shape &shape, const PackedKeys &packed, int64_t head, int64_t queries, Scratch &scratch) {
    std::fill_n(scratch.maximum, BLOCK, flash::LOWEST_SCORE);
    std::fill_n(scratch.sum, BLOCK, 0.0f);
    std::fill_n(&scratch.output[0], BLOCK * shape.width, 0.0f);
    for (int64_t block = 0; block < packed.blocks; ++block) {
        const int64_t first = block * KEY_BLOCK, count = std::min(KEY_BLOCK, shape.keys - first);
        const float *keys = &packed.keys[(head * shape.keys + first) * shape.width];
        const float *values = &packed.values[(head * packed.blocks + block) * shape.width * KEY_BLOCK];
        for (int64_t query = 0; query < queries; query += STRIP) {
            float *scores = &scratch.scores[0], *output = &scratch.output[query * shape.width];
            multiply_strip(count, {keys, shape.width}, {&scratch.query[query * shape.width], STRIP}, shape.width, true,
                           {scores, STRIP}, nullptr);
            for (int64_t half = 0; half < STRIP; half += LANES) {
                online_softmax(scores + half, count, shape.scale * flash::LOG2_E, output + half, shape.width,
                               scratch.maximum + query + half, scratch.sum + query + half);
            }
            multiply_strip(shape.width, {values, KEY_BLOCK}, {scores, STRIP}, count, false, {output, STRIP}, nullptr);
        }
    }
}

} // namespace

void attend(const Shape &shape, const Runner &runner, View<const float> query, View<const float> key,
            View<const float> value, View<float> output, float *log_sum_exp) {
    const PackedKeys packed = pack(shape, runner, key, value);
    const int64_t blocks = divide_up(shape.queries, BLOCK), width = shape.width;
    runner.backend.parallel_for(shape.batches * shape.heads * blocks, [&](int64_t begin, int64_t end) {
        const Multiplying multiplying(runner.backend);
        Scratch scratch(width);
        for (int64_t task = begin; task < end; ++task) {
            const int64_t head = task / blocks, first = task % blocks * BLOCK;
            const int64_t count = std::min(BLOCK, shape.queries - first);
            turn_into_strips(matrix_of(flash::rows_of(query, shape, head), first), count, width, &scratch.query[0]);
            attend_block(shape, packed, head, count, scratch);
            const auto rows = flash::rows_of(output, shape, head);
            for (int64_t token = 0; token < count; token += STRIP) {
                float *strip = &scratch.output[token * width];
                divide(strip, width, scratch.sum + token);
                turn({strip, STRIP}, width, std::min(STRIP, count - token), 1.0f, {rows.row(first + token), rows.stride});
            }
            for (int64_t token = 0; token < count; ++token) {
                log_sum_exp[head * shape.queries + first + token] = scratch.maximum[token] + std::log2(scratch.sum[token]);
            }
        }
    });
}
