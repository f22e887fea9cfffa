// How the work is cut was measured on 2 cores with 48 KB and 2 MB of cache each (docs/performance.md).

#include "tiled_product.h"

#include "attention_blocks.h"

#include <vector>

namespace ringtune::tiled {

namespace {

using flash::divide_up;
using flash::LANES;
using flash::Multiplying;
using flash::round_up;
using flash::widened;

constexpr int64_t ROWS = flash::AMX_ROWS;          // of a tile
constexpr int64_t TILE_BYTES = 1024;               // of any tile
constexpr int64_t SUMS = ROWS * WIDTH;             // of 16 rows
constexpr int64_t LINE = 64;                       // bytes of a cache line
constexpr int64_t GAP = LINE / int64_t(sizeof(Bf16)); // between pixels, so that 16 of them lie in different sets of the cache
constexpr int64_t SOON = 2;                        // tiles, until results are written
// Strips of 32 outputs whose sums a thread holds at once.
constexpr int64_t GROUP_OF_ROWS = 20;  // of a matrix
constexpr int64_t GROUP_OF_PIXELS = 4; // of a 3x3 convolution

// 32 inputs at one place of the kernel.
struct Unit {
    int64_t place, input;
};

// The order of a layer's sums. Between two `ends` lie the weights that stay in a core's nearest cache while all rows are
// multiplied by them; of a 3x3 kernel these are places side by side, which share their pixels.
struct Order {
    std::vector<Unit> units;
    std::vector<int64_t> ends;
};

Order order_of(const Layer &layer) {
    const int64_t depth = layer.inputs / WIDTH;
    const int64_t most = layer.side == 1 ? (depth <= 20 ? 10 : 8) : (depth <= 30 ? 5 : 4);
    const int64_t piece = divide_up(depth, divide_up(depth, most));
    Order order;
    order.units.reserve(depth * layer.places());
    for (int64_t row = 0; row < layer.side; ++row) {
        for (int64_t first = 0; first < depth; first += piece) {
            for (int64_t column = 0; column < layer.side; ++column) {
                for (int64_t at = first; at < std::min(first + piece, depth); ++at) {
                    order.units.push_back({row * layer.side + column, at * WIDTH});
                }
            }
            order.ends.push_back(int64_t(order.units.size()));
        }
    }
    return order;
}

// The left operand, 16 rows at a time.
struct Rows {
    std::vector<const Bf16 *> tiles;
    int64_t stride = 0;           // elements from row to row
    std::vector<int64_t> offsets; // bytes from a row to its part of each unit
    std::vector<int64_t> results; // the pixel of each row; none: -1
    Buffer<Bf16> copy;
};

Rows rows_in_place(const Layer &layer, const Pictures &pictures, const Bf16 *x, const Order &order) {
    const int64_t count = pictures.batches * pictures.height * pictures.width, whole = count / ROWS * ROWS;
    Rows rows;
    rows.stride = layer.inputs;
    for (const Unit &unit : order.units) {
        rows.offsets.push_back(unit.input * int64_t(sizeof(Bf16)));
    }
    for (int64_t row = 0; row < whole; row += ROWS) {
        rows.tiles.push_back(x + row * rows.stride);
    }
    if (whole < count) {
        rows.copy = allocate<Bf16>(ROWS * rows.stride);
        std::memset(&rows.copy[0], 0, ROWS * rows.stride * sizeof(Bf16));
        std::memcpy(&rows.copy[0], x + whole * rows.stride, (count - whole) * rows.stride * sizeof(Bf16));
        rows.tiles.push_back(&rows.copy[0]);
    }
    for (int64_t row = 0; row < round_up(count, ROWS); ++row) {
        rows.results.push_back(row < count ? row : -1);
    }
    return rows;
}

// Pixels between zeros, so that every place of the kernel is a distance in memory that all rows of a tile share.
Rows rows_between_zeros(const Backend &backend, const Layer &layer, const Pictures &pictures, const Bf16 *x,
                        const Order &order) {
    const auto [batches, height, width] = pictures;
    const int64_t across = width + 2, down = height + 2;
    Rows rows;
    const int64_t stride = rows.stride = layer.inputs + GAP;
    for (const auto [place, input] : order.units) {
        rows.offsets.push_back(((place / 3 * across + place % 3) * stride + input) * int64_t(sizeof(Bf16)));
    }
    // The last tile reads up to 15 pixels behind the last picture.
    const int64_t pixels = batches * down * across;
    rows.copy = allocate<Bf16>((pixels + ROWS) * stride);
    Bf16 *copy = &rows.copy[0];
    std::memset(copy + pixels * stride, 0, ROWS * stride * sizeof(Bf16));
    backend.parallel_for(batches * down, [&](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
            Bf16 *to = copy + line * across * stride;
            const int64_t y = line % down - 1;
            if (y < 0 || y == height) {
                std::memset(to, 0, across * stride * sizeof(Bf16));
                continue;
            }
            const Bf16 *from = x + (line / down * height + y) * width * layer.inputs;
            std::memset(to, 0, layer.inputs * sizeof(Bf16));
            std::memset(to + (width + 1) * stride, 0, layer.inputs * sizeof(Bf16));
            for (int64_t pixel = 0; pixel < width; ++pixel) {
                std::memcpy(to + (pixel + 1) * stride, from + pixel * layer.inputs, layer.inputs * sizeof(Bf16));
            }
        }
    });
    // Tiles go on from line to line, over the zeros between, unless lines are whole tiles.
    const int64_t run = width % ROWS == 0 ? width : (height - 1) * across + width;
    for (int64_t batch = 0; batch < batches; ++batch) {
        for (int64_t start = 0; start <= (height - 1) * across; start += run == width ? across : run) {
            for (int64_t first = start; first < start + run; first += ROWS) {
                rows.tiles.push_back(copy + (batch * down * across + first) * stride);
                for (int64_t at = first; at < first + ROWS; ++at) {
                    const int64_t line = at / across, column = at % across;
                    const bool inside = line < height && column < width;
                    rows.results.push_back(inside ? (batch * height + line) * width + column : -1);
                }
            }
        }
    }
    return rows;
}

// What one product of a few tiles reads.
struct Slab {
    const char *weights;
    const int64_t *offsets;
    int64_t units;
    int64_t row_bytes;
    bool first; // of a sum
    bool cold;  // rows that no core's cache may have yet
};

// Weights that are wanted soon, on their way from memory.
struct Ahead {
    const char *next;
    const char *end;
};

// Rows of a tile that is wanted soon. Processors foresee the next line, and not 16 of them a row apart.
inline void fetch_rows(const Bf16 *rows, int64_t offset, int64_t row_bytes) {
    const char *line = reinterpret_cast<const char *>(rows) + offset;
    for (int64_t row = 0; row < ROWS; ++row) {
        _mm_prefetch(line, _MM_HINT_T0);
        line += row_bytes;
    }
}

// Tiles 0 to 3 are sums, 4 and 5 rows, 6 and 7 weights.
template <int TALL>
RINGTUNE_AMX inline void block(const Slab &slab, const Bf16 *const *rows, int64_t tiles, float *sums, Ahead &ahead, int64_t lines) {
    const int64_t following = slab.cold ? std::min<int64_t>(tiles - TALL, 2) : 0;
    const char *upper = reinterpret_cast<const char *>(rows[0]);
    const char *lower = reinterpret_cast<const char *>(rows[TALL - 1]);
    const char *weights = slab.weights;
    char *c = reinterpret_cast<char *>(sums);
    if (slab.first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, c, LINE);
        _tile_loadd(1, c + TILE_BYTES, LINE);
        if constexpr (TALL == 2) {
            _tile_loadd(2, c + 2 * TILE_BYTES, LINE);
            _tile_loadd(3, c + 3 * TILE_BYTES, LINE);
        }
    }
    for (int64_t unit = 0; unit < slab.units; ++unit) {
        const int64_t offset = slab.offsets[unit];
        _tile_loadd(6, weights, LINE);
        _tile_loadd(4, upper + offset, slab.row_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, weights + TILE_BYTES, LINE);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (TALL == 2) {
            _tile_loadd(5, lower + offset, slab.row_bytes);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        weights += 2 * TILE_BYTES;
        for (int64_t tile = 0; tile < following; ++tile) {
            fetch_rows(rows[TALL + tile], offset, slab.row_bytes);
        }
        for (int64_t line = 0; line < lines && ahead.next < ahead.end; ++line) {
            _mm_prefetch(ahead.next, _MM_HINT_T1);
            ahead.next += LINE;
        }
    }
    _tile_stored(0, c, LINE);
    _tile_stored(1, c + TILE_BYTES, LINE);
    if constexpr (TALL == 2) {
        _tile_stored(2, c + 2 * TILE_BYTES, LINE);
        _tile_stored(3, c + 3 * TILE_BYTES, LINE);
    }
}

// `tiles` times 16 rows.
RINGTUNE_AMX void multiply_slab(const Slab &slab, const Bf16 *const *rows, int64_t tiles, float *sums, Ahead ahead) {
    const int64_t lines = divide_up((ahead.end - ahead.next) / LINE, divide_up(tiles, 2) * slab.units);
    int64_t tile = 0;
    for (; tile + 2 <= tiles; tile += 2) {
        block<2>(slab, rows + tile, tiles - tile, sums + tile * SUMS, ahead, lines);
    }
    if (tile < tiles) {
        block<1>(slab, rows + tile, tiles - tile, sums + tile * SUMS, ahead, lines);
    }
}

// Rounds the sums of 16 rows and 32 outputs, `first` the first of these.
// Where 16 rows of results will be written, and residuals read.
__attribute__((target("prfchw"))) void fetch_results(const int64_t *results, const Layer &layer,
                                                     const Operands &operands, int64_t first) {
    for (int64_t row = 0; row < ROWS; ++row) {
        if (results[row] >= 0) {
            const int64_t at = results[row] * layer.outputs + first;
            __builtin_prefetch(operands.result + at, 1);
            if (operands.residual != nullptr) {
                __builtin_prefetch(operands.residual + at);
            }
        }
    }
}

RINGTUNE_AVX512 void finish(const float *sums, const int64_t *results, const Layer &layer, const Operands &operands,
                            int64_t first) {
    __m512 bias[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    if (operands.bias != nullptr) {
        bias[0] = widened(operands.bias + first);
        bias[1] = widened(operands.bias + first + LANES);
    }
    for (int64_t row = 0; row < ROWS; ++row) {
        if (results[row] < 0) {
            continue;
        }
        const int64_t at = results[row] * layer.outputs + first;
        __m512 left = _mm512_add_ps(_mm512_load_ps(sums + row * LANES), bias[0]);
        __m512 right = _mm512_add_ps(_mm512_load_ps(sums + SUMS / 2 + row * LANES), bias[1]);
        if (operands.residual != nullptr) {
            left = _mm512_add_ps(left, widened(operands.residual + at));
            right = _mm512_add_ps(right, widened(operands.residual + at + LANES));
        }
        _mm512_storeu_si512(operands.result + at, flash::to_bf16(left, right));
    }
}

// How many tiles a thread goes through with the same weights: their rows stay in a core's larger cache.
int64_t tiles_at_once(const Layer &layer, int64_t tiles) {
    const int64_t most = layer.side == 1 ? 16 : std::clamp<int64_t>(32768 / layer.inputs, 8, 32);
    return round_up(divide_up(tiles, divide_up(tiles, most)), 2);
}

// Strips [first, first + count) of 32 outputs for the tiles from `tile` on.
void multiply_part(const Layer &layer, const Order &order, const Rows &rows, const Operands &operands, int64_t tile,
                   int64_t tiles, int64_t first, int64_t count, bool cold, float *sums) {
    const auto *weights = reinterpret_cast<const char *>(operands.weights);
    const int64_t unit_bytes = UNIT * int64_t(sizeof(Bf16)), all = int64_t(order.units.size());
    const auto weights_at = [&](int64_t strip, int64_t unit) { return weights + (strip * all + unit) * unit_bytes; };
    int64_t begin = 0;
    for (size_t at = 0; at < order.ends.size(); ++at) {
        const int64_t end = order.ends[at];
        for (int64_t strip = first; strip < first + count; ++strip) {
            Ahead ahead{nullptr, nullptr};
            if (strip + 1 < first + count) {
                ahead = {weights_at(strip + 1, begin), weights_at(strip + 1, end)};
            } else if (at + 1 < order.ends.size()) {
                ahead = {weights_at(first, end), weights_at(first, order.ends[at + 1])};
            } else if ((strip + 1) * WIDTH < layer.outputs) {
                ahead = {weights_at(strip + 1, 0), weights_at(strip + 1, order.ends[0])};
            }
            const Slab slab{weights_at(strip, begin), &rows.offsets[begin], end - begin,
                            rows.stride * int64_t(sizeof(Bf16)), at == 0, cold && strip == first};
            multiply_slab(slab, &rows.tiles[tile], tiles, sums + (strip - first) * tiles * SUMS, ahead);
        }
        begin = end;
    }
    // Row by row, so that lines of memory that lie together are written together.
    for (int64_t each = 0; each < tiles; ++each) {
        for (int64_t strip = 0; strip < count; ++strip) {
            if (each + SOON < tiles) {
                fetch_results(&rows.results[(tile + each + SOON) * ROWS], layer, operands, (first + strip) * WIDTH);
            }
            finish(sums + (strip * tiles + each) * SUMS, &rows.results[(tile + each) * ROWS], layer, operands,
                   (first + strip) * WIDTH);
        }
    }
}

} // namespace

void pack(const Layer &layer, const Bf16 *weights, int64_t first, int64_t end, Bf16 *packed) {
    const Order order = order_of(layer);
    for (int64_t strip = first; strip < end; ++strip) {
        Bf16 *to = packed + strip * int64_t(order.units.size()) * UNIT;
        for (const auto [place, input] : order.units) {
            for (int64_t output = 0; output < WIDTH; ++output) {
                const Bf16 *from = weights + ((strip * WIDTH + output) * layer.places() + place) * layer.inputs + input;
                Bf16 *column = to + output / LANES * UNIT / 2 + output % LANES * 2;
                for (int64_t pair = 0; pair < WIDTH / 2; ++pair) {
                    std::memcpy(column + pair * LANES * 2, from + pair * 2, 2 * sizeof(Bf16));
                }
            }
            to += UNIT;
        }
    }
}

void multiply(const Backend &backend, const Layer &layer, const Pictures &pictures, const Operands &operands) {
    const Order order = order_of(layer);
    const Rows rows = layer.side == 1 ? rows_in_place(layer, pictures, operands.x, order)
                                      : rows_between_zeros(backend, layer, pictures, operands.x, order);
    const int64_t all = int64_t(rows.tiles.size()), strips = layer.outputs / WIDTH, group = layer.side == 1 ? GROUP_OF_ROWS : GROUP_OF_PIXELS;
    const int64_t at_once = tiles_at_once(layer, all);
    backend.parallel_for(divide_up(all, at_once) * strips, [&](int64_t begin, int64_t end) {
        const Multiplying multiplying(backend);
        const Buffer<float> sums = allocate<float>(at_once * group * SUMS);
        for (int64_t task = begin; task < end;) {
            const int64_t first = task % strips, count = std::min({group, strips - first, end - task});
            const int64_t tile = task / strips * at_once;
            multiply_part(layer, order, rows, operands, tile, std::min(at_once, all - tile), first, count, task == begin || first == 0, &sums[0]);
            task += count;
        }
    });
}

} // namespace ringtune::tiled
