// Weights in another order of dimensions, piece by piece; whoever calls divides the pieces. Plain pointers, no libtorch.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ringtune::packing {

// Outputs and inputs that are exchanged at once: what is read and what is written of a tile stays in the nearest cache.
constexpr int64_t TILE = 32;

// Weights of two bytes a value, [outputs][inputs][places].
struct Plain {
    const uint16_t *values;
    int64_t outputs, inputs, places;
};

// target[output][place][input]
inline void interleave(const Plain &plain, int64_t output, uint16_t *target) {
    const uint16_t *source = plain.values + output * plain.inputs * plain.places;
    target += output * plain.inputs * plain.places;
    for (int64_t place = 0; place < plain.places; ++place) {
        for (int64_t input = 0; input < plain.inputs; ++input) {
            *target++ = source[input * plain.places + place];
        }
    }
}

// target[input][place, the last one first][output], for the inputs from `first` on of one tile.
inline void exchange(const Plain &plain, int64_t first, uint16_t *target) {
    const auto [values, outputs, inputs, places] = plain;
    const int64_t end = std::min(first + TILE, inputs);
    for (int64_t output = 0; output < outputs; output += TILE) {
        const int64_t count = std::min(TILE, outputs - output);
        for (int64_t input = first; input < end; ++input) {
            for (int64_t place = 0; place < places; ++place) {
                const uint16_t *from = values + (output * inputs + input) * places + place;
                uint16_t *to = target + (input * places + places - 1 - place) * outputs + output;
                for (int64_t each = 0; each < count; ++each) {
                    to[each] = from[each * inputs * places];
                }
            }
        }
    }
}

} // namespace ringtune::packing
