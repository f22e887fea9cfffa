// The matrix product of attention_kernels.h by AMX: blocks of 2 x 2 tiles whose sums stay in tile registers, one
// configuration of the tiles throughout. Intel's Architecture Instruction Set Extensions reference, chapter 3.

#include "attention_blocks.h"

namespace ringtune::flash {

namespace {

constexpr int64_t ROWS = AMX_ROWS;   // of a tile of `a` and `c`
constexpr int64_t COLUMNS = 16;      // of a tile of `b` and `c`
constexpr int64_t DEPTH = AMX_DEPTH; // of a tile of `a` and `b`

// All eight tiles have 16 rows of 64 bytes.
struct alignas(64) Configuration {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

struct Product {
    int64_t depth;
    const Bf16 *a;
    int64_t a_bytes; // from row to row
    const Bf16 *b;
    int64_t b_bytes; // from pair of rows to pair of rows
    float *c;
    int64_t c_bytes;
    bool accumulate;
};

// Tiles 0 to 3 are sums, 4 and 5 rows of a, 6 and 7 columns of b. The intrinsics take literal numbers only.
template <int TALL, int WIDE> RINGTUNE_AMX inline void block(const Product &product, int64_t row, int64_t column) {
    const char *a = reinterpret_cast<const char *>(product.a) + row * product.a_bytes;
    const char *b = reinterpret_cast<const char *>(product.b) + column * 4;
    char *c = reinterpret_cast<char *>(product.c) + row * product.c_bytes + column * 4;
    char *below = c + ROWS * product.c_bytes;
    if (product.accumulate) {
        _tile_loadd(0, c, product.c_bytes);
        if constexpr (WIDE == 2) {
            _tile_loadd(1, c + 64, product.c_bytes);
        }
        if constexpr (TALL == 2) {
            _tile_loadd(2, below, product.c_bytes);
        }
        if constexpr (TALL == 2 && WIDE == 2) {
            _tile_loadd(3, below + 64, product.c_bytes);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t at = 0; at < product.depth; at += DEPTH) {
        _tile_loadd(6, b, product.b_bytes);
        _tile_loadd(4, a, product.a_bytes);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (WIDE == 2) {
            _tile_loadd(7, b + 64, product.b_bytes);
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (TALL == 2) {
            _tile_loadd(5, a + ROWS * product.a_bytes, product.a_bytes);
            _tile_dpbf16ps(2, 5, 6);
        }
        if constexpr (TALL == 2 && WIDE == 2) {
            _tile_dpbf16ps(3, 5, 7);
        }
        a += DEPTH * sizeof(Bf16);
        b += DEPTH / 2 * product.b_bytes;
    }
    _tile_stored(0, c, product.c_bytes);
    if constexpr (WIDE == 2) {
        _tile_stored(1, c + 64, product.c_bytes);
    }
    if constexpr (TALL == 2) {
        _tile_stored(2, below, product.c_bytes);
    }
    if constexpr (TALL == 2 && WIDE == 2) {
        _tile_stored(3, below + 64, product.c_bytes);
    }
}

template <int TALL> RINGTUNE_AMX inline void strip(const Product &product, int64_t columns, int64_t row) {
    int64_t column = 0;
    for (; column + 2 * COLUMNS <= columns; column += 2 * COLUMNS) {
        block<TALL, 2>(product, row, column);
    }
    if (column < columns) {
        block<TALL, 1>(product, row, column);
    }
}

} // namespace

RINGTUNE_AMX void acquire_amx() noexcept {
    static constexpr Configuration configuration;
    _tile_loadconfig(&configuration);
}

RINGTUNE_AMX void release_amx() noexcept { _tile_release(); }

RINGTUNE_AMX void gemm_amx(int64_t m, int64_t n, int64_t k, const Bf16 *a, int64_t lda, const Bf16 *b, int64_t ldb,
                           float *c, int64_t ldc, bool accumulate) {
    const Product product{k, a, lda * int64_t(sizeof(Bf16)), b, ldb * 4, c, ldc * int64_t(sizeof(float)), accumulate};
    int64_t row = 0;
    for (; row + 2 * ROWS <= m; row += 2 * ROWS) {
        strip<2>(product, n, row);
    }
    if (row < m) {
        strip<1>(product, n, row);
    }
}

} // namespace ringtune::flash
