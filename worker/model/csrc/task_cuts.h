// How layers are cut into tasks, whatever multiplies them. Nothing here moves a bit.
#pragma once

#include "attention_blocks.h"
#include "frozen_layer.h"

#include <limits>

namespace ringtune::cuts {

using flash::divide_up;
using frozen::Pictures;

// Tiles of SIDE x SIDE results, line by line, picture by picture.
template <int64_t SIDE> struct Tiles {
    Pictures pictures;
    int64_t down, across;

    explicit Tiles(const Pictures &all)
        : pictures(all), down(divide_up(all.height, SIDE)), across(divide_up(all.width, SIDE)) {}
    int64_t count() const { return pictures.batches * down * across; }
    // Which pixel, of all, lies so far below and right of a tile's first; none: -1.
    int64_t pixel(int64_t tile, int64_t below, int64_t right) const {
        const int64_t row = tile / across % down * SIDE + below, column = tile % across * SIDE + right;
        if (row < 0 || row >= pictures.height || column < 0 || column >= pictures.width) {
            return -1;
        }
        return (tile / (down * across) * pictures.height + row) * pictures.width + column;
    }
};

// How many tiles or rows a task may have, and what it costs beside them, in the same unit.
struct Limits {
    int64_t most, fewest, cost;
};

// Blocks of tiles that meet the same transformed weights, some of which are worked on at the same time.
struct Blocks {
    int64_t tiles, blocks;
};

// A block's tasks are its groups of outputs. `count`: of all tiles.
inline Blocks blocks_of(int64_t count, int64_t groups, int64_t threads, const Limits &limits) {
    Blocks best{};
    int64_t least = std::numeric_limits<int64_t>::max();
    for (int64_t tiles = limits.most; tiles >= limits.fewest; tiles /= 2) {
        const int64_t all = divide_up(count, tiles);
        const int64_t blocks = std::min({all, threads, divide_up(4 * threads, groups)});
        const int64_t rounds = all / blocks * divide_up(blocks * groups, threads) +
                               divide_up(all % blocks * groups, threads);
        const int64_t cost = rounds * (std::min(tiles, count) + limits.cost);
        if (cost < least) {
            least = cost;
            best = {tiles, blocks};
        }
    }
    return best;
}

// How many rows a task has, each of a group of columns.
inline int64_t rows_of_task(int64_t rows, int64_t groups, int64_t threads, const Limits &limits) {
    int64_t best = limits.most, least = std::numeric_limits<int64_t>::max();
    for (int64_t at_once = limits.most; at_once >= limits.fewest; at_once /= 2) {
        const int64_t rounds = divide_up(divide_up(rows, at_once) * groups, threads);
        const int64_t cost = rounds * (std::min(at_once, rows) + limits.cost);
        if (cost < least) {
            least = cost;
            best = at_once;
        }
    }
    return best;
}

} // namespace ringtune::cuts
