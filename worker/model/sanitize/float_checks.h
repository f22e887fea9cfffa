// The kernels of float_layers.h.
#pragma once

#include "../csrc/float_layers.h"
#include "../csrc/instructions.h"
#include "support.h"

namespace {

namespace floats = ringtune::floats;

const flash::Backend &float_backend() {
    const auto nothing = []() noexcept {};
    static const flash::Backend backend{nullptr, 1, 2, nothing, nothing, one_by_one};
    return backend;
}

// How many threads there are decides what is cut, and no number.
void float_layer(const floats::Channels &channels, floats::Way way, const floats::Pictures &pictures, int64_t side) {
    Draw draw;
    const auto [inputs, outputs] = channels;
    const int64_t pixels = pictures.batches * pictures.height * pictures.width, places = side * side;
    const auto x = draw.floats(pixels * inputs), weights = draw.floats(outputs * places * inputs),
               bias = draw.floats(outputs), residual = draw.floats(pixels * outputs);
    const auto weight = [&, inputs, outputs](int64_t output, int64_t place, int64_t input) {
        return weights[way == floats::Way::Forward ? (output * inputs + input) * places + place
                                                   : (input * outputs + output) * places + places - 1 - place];
    };
    auto expected = products(pictures, side, inputs, outputs, x, weight);
    for (const bool added : {false, true}) {
        floats::Operands operands{x.get(), weights.get(), added ? bias.get() : nullptr,
                                  added ? residual.get() : nullptr, nullptr};
        for (int64_t at = 0; added && at < pixels * outputs; ++at) {
            expected[at] += double(bias[at % outputs]) + residual[at];
        }
        for (const int64_t threads : {1, 3, 56}) {
            const floats::Runner runner{float_backend(), threads};
            const Exact<float> result(pixels * outputs);
            operands.result = result.get();
            if (side == 1) {
                floats::multiply(runner, channels, way, pixels, operands);
            } else {
                floats::convolve(runner, channels, way, pictures, operands);
            }
            compare(side == 1 ? "rows in fp32" : "a convolution in fp32", result, expected, 2e-6);
        }
    }
}

void float_attention(const Sizes &s) {
    Draw draw;
    const int64_t queries = s.batches * s.queries * s.heads * s.width, keys = s.batches * s.keys * s.heads * s.width;
    const auto q = draw.floats(queries), k = draw.floats(keys), v = draw.floats(keys), g = draw.floats(queries);
    const Reference expected = reference(s, q, k, v, g);
    const flash::Shape shape{s.batches, s.heads, s.queries, s.keys, s.width, float(1.0 / std::sqrt(double(s.width)))};
    const Exact<float> output(queries), log_sum_exp(s.batches * s.heads * s.queries);
    const auto in = [&](const Exact<float> &of, int64_t tokens) { return view<const float>(of.get(), tokens, s); };
    const floats::Runner runner{float_backend(), 1};
    floats::attend(shape, runner, in(q, s.queries), in(k, s.keys), in(v, s.keys), view(output.get(), s.queries, s),
                   log_sum_exp.get());
    compare("attention in fp32", output, expected.output, 2e-6);
    compare("its log-sum-exp", log_sum_exp, expected.log_sum_exp, 2e-6);
    // Each gradient alone and all together: which are wanted decides what is added up.
    for (const int wanted : {1, 2, 4, 7}) {
        const Exact<float> dq(queries), dk(keys), dv(keys);
        const auto out = [&](const Exact<float> &of, int64_t tokens, int bit) {
            return (wanted & bit) != 0 ? view(of.get(), tokens, s) : flash::View<float>{nullptr, 0, 0, 0};
        };
        floats::attend_back(shape, runner,
                            {in(q, s.queries), in(k, s.keys), in(v, s.keys), in(output, s.queries), log_sum_exp.get(),
                             in(g, s.queries)},
                            {out(dq, s.queries, 1), out(dk, s.keys, 2), out(dv, s.keys, 4)});
        // With one key the probabilities are 1, and these gradients are rounding alone.
        if (s.keys > 1 && (wanted & 1) != 0) {
            compare("its gradient of queries", dq, expected.query, 5e-6);
        }
        if (s.keys > 1 && (wanted & 2) != 0) {
            compare("its gradient of keys", dk, expected.key, 5e-6);
        }
        if ((wanted & 4) != 0) {
            compare("its gradient of values", dv, expected.value, 5e-6);
        }
    }
}

void float_layers(const char *with) {
    int shapes = 0;
    // Channels come in as many as two vectors have.
    const int64_t strip = floats::fits(16, 16) ? 16 : 32;
    for (const floats::Way way : {floats::Way::Forward, floats::Way::Backward}) {
        for (const floats::Pictures &pictures :
             {floats::Pictures{2, 5, 7}, {1, 1, 1}, {1, 40, 1}, {1, 8, 8}, {3, 9, 6}, {1, 11, 26}}) {
            for (const floats::Channels &channels : {floats::Channels{1, 1}, {3, 6}, {9, 5}, {22, 1}}) {
                const floats::Channels whole{strip * channels.inputs, strip * channels.outputs};
                float_layer(whole, way, pictures, 1);
                float_layer(whole, way, pictures, 3);
                shapes += 2;
            }
        }
    }
    std::printf("  layers in fp32 with %s: %d shapes (1 to 286 pixels, for 1 to 56 threads)\n", with, shapes);
    shapes = 0;
    for (const Sizes &sizes : {
             Sizes{1, 1, 1, 1, 1}, Sizes{1, 1, 5, 3, 1}, Sizes{3, 2, 7, 77, 24}, Sizes{1, 2, 200, 200, 24},
             Sizes{3, 1, 97, 129, 40}, Sizes{1, 3, 49, 77, 80}, Sizes{2, 1, 95, 31, 33}, Sizes{1, 1, 192, 257, 64},
             Sizes{1, 1, 63, 154, 160}, Sizes{1, 2, 100, 600, 16}, Sizes{1, 1, 500, 65, 8}, Sizes{1, 1, 33, 35, 256},
         }) {
        float_attention(sizes);
        ++shapes;
    }
    std::printf("  attention in fp32 with %s: %d shapes, every gradient alone\n", with, shapes);
}

// One number too many of the operand.
void float_layer_beyond() {
    const Exact<float> x(6 * 16 - 1), weights(16 * 16), result(6 * 16);
    floats::multiply({float_backend(), 1}, {16, 16}, floats::Way::Forward, 6,
                     {x.get(), weights.get(), nullptr, nullptr, result.get()});
}

} // namespace
