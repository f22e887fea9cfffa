// The kernels of float_layers.h, which need AVX2 and not AVX-512; included by kernels.cpp.

namespace floats = ringtune::floats;

// What a layer's result is, by plain loops. `side`: 3 or 1.
std::vector<double> float_layer_expected(const floats::Channels &channels, floats::Way way, const floats::Pictures &pictures,
                                         int64_t side, const floats::Operands &operands) {
    const auto [inputs, outputs] = channels;
    const auto [batches, height, width] = pictures;
    const int64_t places = side * side;
    std::vector<double> expected(batches * height * width * outputs);
    for (size_t at = 0; at < expected.size(); ++at) {
        const int64_t pixel = at / outputs, output = at % outputs, row = pixel / width % height, column = pixel % width;
        double sum = operands.bias == nullptr ? 0.0 : operands.bias[output];
        sum += operands.residual == nullptr ? 0.0 : operands.residual[at];
        for (int64_t place = 0; place < places; ++place) {
            const int64_t down = place / side - side / 2, across = place % side - side / 2;
            if (row + down < 0 || row + down >= height || column + across < 0 || column + across >= width) {
                continue;
            }
            for (int64_t input = 0; input < inputs; ++input) {
                const int64_t weight = way == floats::Way::Forward
                                           ? (output * places + place) * inputs + input
                                           : (input * places + places - 1 - place) * outputs + output;
                sum += double(operands.x[(pixel + down * width + across) * inputs + input]) * operands.weights[weight];
            }
        }
        expected[at] = sum;
    }
    return expected;
}

void float_layer(const floats::Runner &runner, const floats::Channels &channels, floats::Way way,
                 const floats::Pictures &pictures, int64_t side) {
    Draw draw;
    const auto [inputs, outputs] = channels;
    const int64_t pixels = pictures.batches * pictures.height * pictures.width;
    const auto x = draw.floats(pixels * inputs), weights = draw.floats(outputs * side * side * inputs),
               bias = draw.floats(outputs), residual = draw.floats(pixels * outputs);
    for (const bool added : {false, true}) {
        const Exact<float> result(pixels * outputs);
        const floats::Operands operands{x.get(), weights.get(), added ? bias.get() : nullptr,
                                        added ? residual.get() : nullptr, result.get()};
        if (side == 1) {
            floats::multiply(runner, channels, way, pixels, operands);
        } else {
            floats::convolve(runner, channels, way, pictures, operands);
        }
        compare(side == 1 ? "rows in fp32" : "a convolution in fp32", result,
                float_layer_expected(channels, way, pictures, side, operands), 2e-6);
    }
}

const flash::Backend &float_backend() {
    const auto nothing = []() noexcept {};
    static const flash::Backend backend{nullptr, 1, 2, nothing, nothing, one_by_one};
    return backend;
}

void float_layers() {
    int shapes = 0;
    for (const int64_t threads : {1, 3, 56}) {
        const floats::Runner runner{float_backend(), threads};
        for (const floats::Way way : {floats::Way::Forward, floats::Way::Backward}) {
            for (const floats::Pictures &pictures :
                 {floats::Pictures{2, 5, 7}, {1, 1, 1}, {1, 40, 1}, {1, 8, 8}, {3, 9, 6}, {1, 21, 50}}) {
                for (const floats::Channels &channels : {floats::Channels{16, 16}, {48, 96}, {144, 80}, {352, 16}}) {
                    float_layer(runner, channels, way, pictures, 1);
                    float_layer(runner, channels, way, pictures, 3);
                    shapes += 2;
                }
            }
        }
    }
    std::printf("  layers in fp32 with AVX2: %d shapes (1 to 1050 pixels, for 1 to 56 threads)\n", shapes);
}

// One number too many of the operand.
void float_layer_beyond() {
    const Exact<float> x(6 * 16 - 1), weights(16 * 16), result(6 * 16);
    floats::multiply({float_backend(), 1}, {16, 16}, floats::Way::Forward, 6,
                     {x.get(), weights.get(), nullptr, nullptr, result.get()});
}
