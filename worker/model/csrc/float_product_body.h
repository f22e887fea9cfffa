// A product of few rows and a strip of columns, in the words of lanes_sixteen.h and lanes_eight.h. Included once for each.

// Columns whose products are added up at once, as two vectors.
constexpr int64_t STRIP = 2 * LANES;
// Rows, likewise: the sums, two vectors of the right operand and one number of the left in 16 or 32 registers.
constexpr int ROWS = LANES == 8 ? 6 : 12;

// sums[COUNT][STRIP] (+)= left[COUNT][depth] right[depth][STRIP]. With an ending, if there is one. What was added up before is added
// last: a few short sums err less than one long one.
template <int COUNT>
RINGTUNE_TARGET inline void multiply_tile(Matrix<const float> left, Matrix<const float> right, int64_t depth, bool first,
                                          Matrix<float> sums, const Ending *ending) {
    Vector sum[COUNT][2];
#pragma GCC unroll 12
    for (int row = 0; row < COUNT; ++row) {
        sum[row][0] = sum[row][1] = zero();
    }
    const float *from[COUNT];
#pragma GCC unroll 12
    for (int row = 0; row < COUNT; ++row) {
        from[row] = left.row(row);
    }
#pragma GCC unroll 2
    for (int64_t at = 0; at < depth; ++at) {
        const Vector by = load(right.row(at)), by_more = load(right.row(at) + LANES);
#pragma GCC unroll 12
        for (int row = 0; row < COUNT; ++row) {
            const Vector value = all(from[row][at]);
            sum[row][0] = times_plus(value, by, sum[row][0]);
            sum[row][1] = times_plus(value, by_more, sum[row][1]);
        }
    }
#pragma GCC unroll 12
    for (int row = 0; row < COUNT; ++row) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            if (!first) {
                sum[row][half] = plus(sum[row][half], load(sums.row(row) + half * LANES));
            }
            if (ending != nullptr && ending->bias != nullptr) {
                sum[row][half] = plus(sum[row][half], load(ending->bias + half * LANES));
            }
            if (ending != nullptr && ending->residual.values != nullptr) {
                const float *more = ending->residual.row(row) + half * LANES;
                sum[row][half] = plus(sum[row][half], load(more));
            }
            store(sums.row(row) + half * LANES, sum[row][half]);
        }
    }
}

// The same for `rows`, COUNT at most.
template <int COUNT>
RINGTUNE_TARGET inline void multiply_rest(int64_t rows, Matrix<const float> left, Matrix<const float> right, int64_t depth,
                                          bool first, Matrix<float> sums, const Ending *ending) {
    if constexpr (COUNT > 0) {
        (rows == COUNT ? multiply_tile<COUNT>(left, right, depth, first, sums, ending)
                       : multiply_rest<COUNT - 1>(rows, left, right, depth, first, sums, ending));
    }
}

// And for any number of rows.
RINGTUNE_TARGET static inline void multiply_strip(int64_t rows, Matrix<const float> left, Matrix<const float> right,
                                                  int64_t depth, bool first, Matrix<float> sums, const Ending *ending) {
    int64_t row = 0;
    Ending rest = ending == nullptr ? Ending{} : *ending;
    const Ending *end = ending == nullptr ? nullptr : &rest;
    const auto advance = [&](int64_t count) {
        row += count;
        left.values += count * left.stride;
        sums.values += count * sums.stride;
        rest.residual.values += rest.residual.values == nullptr ? 0 : count * rest.residual.stride;
    };
    while (row + ROWS <= rows) {
        multiply_tile<ROWS>(left, right, depth, first, sums, end);
        advance(ROWS);
    }
    multiply_rest<ROWS - 1>(rows - row, left, right, depth, first, sums, end);
}
