// Rows times a matrix: a block of the matrix, put in order by whoever multiplies, stays in a core's caches while rows go by.

namespace {

// Products that are added up at once: a strip of them fills two thirds of a core's nearest cache.
constexpr int64_t MOST_DEPTH = 5120 / STRIP;
// Columns that are put in order at once.
constexpr int64_t GROUP = 4 * STRIP;
// Rows that pass by one strip after the other, in a core's larger cache.
constexpr int64_t BLOCK = 16 * ROWS;
// Rows of a task.
constexpr int64_t MOST_ROWS = 16 * BLOCK;
constexpr int64_t FEWEST_ROWS = 4 * ROWS;
// What putting the matrix in order costs, in rows.
constexpr int64_t ORDER_COST = 12;

struct Product {
    Channels channels;
    Way way;
    Operands operands;
};

// `depth` rows of the matrix from `first` on, and a few strips of its columns: [strips][MOST_DEPTH][STRIP]. The matrix is the
// weights turned: strip by strip, which are rows of them.
RINGTUNE_TARGET void order_forward(const Product &product, int64_t first, int64_t depth, int64_t column, int64_t strips,
                                   float *to) {
    const int64_t inputs = product.channels.inputs;
    for (int64_t at = 0; at < strips * STRIP; at += EIGHT) {
        const float *from = product.operands.weights + (column + at) * inputs + first;
        float *half = to + at / STRIP * MOST_DEPTH * STRIP + at % STRIP;
        for (int64_t input = 0; input < depth; input += EIGHT) {
            __m256 rows[EIGHT];
#pragma GCC unroll 8
            for (int64_t row = 0; row < EIGHT; ++row) {
                rows[row] = _mm256_loadu_ps(from + row * inputs + input);
            }
            transpose(rows);
#pragma GCC unroll 8
            for (int64_t row = 0; row < EIGHT; ++row) {
                _mm256_store_ps(half + (input + row) * STRIP, rows[row]);
            }
        }
    }
}

// The same on the way back, where the matrix is the weights as they lie: row by row.
RINGTUNE_TARGET void order_backward(const Product &product, int64_t first, int64_t depth, int64_t column, int64_t strips,
                                    float *to) {
    const int64_t outputs = product.channels.outputs;
    for (int64_t row = 0; row < depth; ++row) {
        const float *from = product.operands.weights + (first + row) * outputs + column;
        for (int64_t strip = 0; strip < strips; ++strip, from += STRIP) {
            float *place = to + (strip * MOST_DEPTH + row) * STRIP;
            store(place, load(from));
            store(place + LANES, load(from + LANES));
        }
    }
}

// Rows [first, first + count) and the group of columns from `column` on. `matrix`: room for a piece of the group.
void multiply_task(const Product &product, int64_t first, int64_t count, int64_t column, float *matrix) {
    const auto [inputs, outputs] = product.channels;
    const Operands &operands = product.operands;
    const int64_t depth = round_up(divide_up(inputs, divide_up(inputs, MOST_DEPTH)), EIGHT);
    const int64_t strips = std::min(GROUP, outputs - column) / STRIP;
    for (int64_t input = 0; input < inputs; input += depth) {
        const int64_t some = std::min(depth, inputs - input);
        const auto order = product.way == Way::Forward ? order_forward : order_backward;
        order(product, input, some, column, strips, matrix);
        const bool last = input + depth >= inputs;
        for (int64_t row = first; row < first + count; row += BLOCK) {
            const int64_t rows = std::min(BLOCK, first + count - row);
            for (int64_t strip = 0; strip < strips; ++strip) {
                const int64_t at = column + strip * STRIP, place = row * outputs + at;
                const Ending ending{operands.bias == nullptr ? nullptr : operands.bias + at,
                                    {operands.residual == nullptr ? nullptr : operands.residual + place, outputs}};
                multiply_strip(rows, {operands.x + row * inputs + input, inputs},
                               {matrix + strip * MOST_DEPTH * STRIP, STRIP}, some, input == 0, {operands.result + place, outputs}, last ? &ending : nullptr);
            }
        }
    }
}

} // namespace

void multiply(const Runner &runner, const Channels &channels, Way way, int64_t rows, const Operands &operands) {
    const Product product{channels, way, operands};
    const int64_t groups = divide_up(channels.outputs, GROUP), threads = runner.threads;
    const int64_t at_once = cuts::rows_of_task(rows, groups, threads, {MOST_ROWS, FEWEST_ROWS, ORDER_COST});
    const int64_t blocks = divide_up(rows, at_once);
    // The larger operand is read from memory once: its part is one task's after the other.
    const bool by_rows = rows > channels.outputs;
    runner.backend.parallel_for(blocks * groups, [&](int64_t begin, int64_t end) {
        const Multiplying multiplying(runner.backend);
        const Buffer<float> matrix = allocate<float>(MOST_DEPTH * GROUP);
        for (int64_t task = begin; task < end; ++task) {
            const int64_t first = (by_rows ? task / groups : task % blocks) * at_once;
            const int64_t column = (by_rows ? task % groups : task / blocks) * GROUP;
            multiply_task(product, first, std::min(at_once, rows - first), column, &matrix[0]);
        }
    });
}
