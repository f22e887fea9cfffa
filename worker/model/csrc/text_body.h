// The kernels of text_kernels.h, for one set of instructions: see language_lanes.h.

RINGTUNE_INLINE float one(const float *place) { return *place; }

RINGTUNE_INLINE float one(const Bf16 *place) {
    const uint32_t bits = uint32_t(*place) << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

RINGTUNE_INLINE void keep_one(float *place, float value) { *place = value; }

RINGTUNE_INLINE void keep_one(Bf16 *place, float value) {
    Bf16 rounded[LANES];
    store(rounded, all(value));
    *place = rounded[0];
}

typedef float Eight __attribute__((vector_size(32)));
typedef float Four __attribute__((vector_size(16)));

// sum_of's sum, in its order, by halves: there are as many here as rows.
RINGTUNE_INLINE float sum_by_halves(Floats values) {
    Eight eights[2];
    __builtin_memcpy(eights, &values, sizeof values);
    const Eight eight = eights[0] + eights[1];
    Four fours[2];
    __builtin_memcpy(fours, &eight, sizeof eight);
    const Four four = fours[0] + fours[1];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// How many numbers of a row are multiplied at once: of bf16 two vectors, as a vector of pairs gives the first of each by a
// shift and the second by a mask.
constexpr int64_t step_of(const float *) { return LANES; }
constexpr int64_t step_of(const Bf16 *) { return 2 * LANES; }

RINGTUNE_INLINE Floats add_products(Floats sum, const float *x, const float *row) { return sum + load(x) * load(row); }

RINGTUNE_INLINE Floats add_products(Floats sum, const float *x, const Bf16 *row) {
    Words pairs;
    __builtin_memcpy(&pairs, row, sizeof pairs);
    sum += load(x) * (Floats)(pairs << 16);
    return sum + load(x + LANES) * (Floats)(pairs & 0xffff0000u);
}

void spread(int64_t width, const float *x, float *factors) {
    along(width, [&](int64_t at, int64_t count) { keep(factors + at, some(x + at, count), count); });
}

void spread(int64_t width, const Bf16 *x, float *factors) {
    constexpr int64_t STEP = 2 * LANES;
    int64_t at = 0;
    for (; at + STEP <= width; at += STEP) {
        for (int64_t lane = 0; lane < LANES; ++lane) {
            factors[at + lane] = one(x + at + 2 * lane);
            factors[at + LANES + lane] = one(x + at + 2 * lane + 1);
        }
    }
    for (; at < width; ++at) {
        factors[at] = one(x + at);
    }
}

// Rows that one sweep of x multiplies.
constexpr int64_t AT_ONCE = 4;

template <int64_t ROWS, typename Element, typename Out>
RINGTUNE_INLINE void some_rows(int64_t width, const float *x, const Element *matrix, const Element *bias, Out *result) {
    constexpr int64_t STEP = step_of((const Element *)nullptr);
    Floats sums[ROWS]{};
    int64_t at = 0;
    for (; at + STEP <= width; at += STEP) {
        for (int64_t row = 0; row < ROWS; ++row) {
            sums[row] = add_products(sums[row], x + at, matrix + row * width + at);
        }
    }
    for (; at < width; at += LANES) {
        const int64_t count = width - at < LANES ? width - at : LANES;
        const Floats factor = some(x + at, count);
        for (int64_t row = 0; row < ROWS; ++row) {
            sums[row] += factor * some(matrix + row * width + at, count);
        }
    }
    for (int64_t row = 0; row < ROWS; ++row) {
        const float sum = sum_by_halves(sums[row]);
        keep_one(result + row, bias == nullptr ? sum : sum + one(bias + row));
    }
}

template <typename Element, typename Out>
void times_rows(int64_t rows, int64_t width, const float *x, const Element *matrix, const Element *bias, Out *result) {
    int64_t row = 0;
    for (; row + AT_ONCE <= rows; row += AT_ONCE) {
        some_rows<AT_ONCE>(width, x, matrix + row * width, bias == nullptr ? nullptr : bias + row, result + row);
    }
    for (; row < rows; ++row) {
        some_rows<1>(width, x, matrix + row * width, bias == nullptr ? nullptr : bias + row, result + row);
    }
}

template <typename Element>
void attend(int64_t tokens, int64_t width, const Element *query, const Element *keys, const Element *values,
            float *weights, Element *result) {
    // 1. How much each token counts, and the greatest of it.
    const float scale = 1.0f / __builtin_sqrtf(float(width));
    float most = -__builtin_huge_valf();
    for (int64_t token = 0; token < tokens; ++token) {
        Floats sum{};
        along(width, [&](int64_t at, int64_t count) {
            sum += some(query + at, count) * some(keys + token * width + at, count);
        });
        weights[token] = sum_by_halves(sum) * scale;
        most = weights[token] > most ? weights[token] : most;
    }
    // 2. The powers, and their sum.
    Floats total{};
    along(tokens, [&](int64_t at, int64_t count) {
        const Floats power = exp_of(some(weights + at, count, -__builtin_huge_valf()) - most);
        keep(weights + at, power, count);
        total += power;
    });
    const float share = 1.0f / sum_of(total);
    // 3. The mean of the values, sixteen columns at a time.
    along(width, [&](int64_t at, int64_t count) {
        Floats sum{};
        for (int64_t token = 0; token < tokens; ++token) {
            sum += weights[token] * some(values + token * width + at, count);
        }
        keep(result + at, sum * share, count);
    });
}
