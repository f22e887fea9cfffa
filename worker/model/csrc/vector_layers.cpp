#include "vector_kernels.h"

namespace ringtune::vectors {

namespace {

// Cycles of 16 weights, measured and counted with AVX-512 of one product a cycle: transforming them, the products of a tile,
// and, in tenths, those of a pixel.
constexpr int64_t TRANSFORMING = 120;
constexpr int64_t OF_TILE = 36;
constexpr int64_t TENTHS_OF_PIXEL = 43;

} // namespace

Method method_of(const Pictures &pictures) {
    const int64_t tiles = divide_up(pictures.height, 4) * divide_up(pictures.width, 4);
    const int64_t pixels = pictures.height * pictures.width;
    return 10 * (TRANSFORMING + OF_TILE * tiles) < TENTHS_OF_PIXEL * pixels ? Method::Winograd : Method::Direct;
}

void pack(const Layer &layer, const Bf16 *weights, int64_t first, int64_t end, Bf16 *packed) {
    const int64_t places = layer.places();
    for (int64_t output = first * WIDTH; output < end * WIDTH; ++output) {
        const int64_t group = output / GROUP * GROUP, pair_stride = vectors_of(layer, group) * places * PAIRS;
        Bf16 *to = packed + (group * layer.inputs + (output - group) / LANES * PAIRS) * places + output % LANES * 2;
        const Bf16 *from = weights + output * places * layer.inputs;
        for (int64_t pair = 0; pair < layer.inputs / 2; ++pair) {
            for (int64_t place = 0; place < places; ++place) {
                std::memcpy(to + pair * pair_stride + place * PAIRS, from + place * layer.inputs + pair * 2,
                            2 * sizeof(Bf16));
            }
        }
    }
}

void multiply(const Runner &runner, const Layer &layer, const Pictures &pictures, const Operands &operands) {
    if (layer.side == 1) {
        multiply_rows(runner, layer, pictures.batches * pictures.height * pictures.width, operands);
    } else if (method_of(pictures) == Method::Winograd) {
        convolve_by_winograd(runner, layer, pictures, operands);
    } else {
        convolve_directly(runner, layer, pictures, operands);
    }
}

} // namespace ringtune::vectors
