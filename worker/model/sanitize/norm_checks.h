// The kernels of fused_kernels.h beside plain loops in double precision.
#pragma once

#include "../csrc/fused_kernels.h"
#include "support.h"

namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// One part of a picture's channels, the last of `all`; with another gradient of the input that is added.
template <typename Element> void norms(int64_t rows, int64_t channels, int64_t all, bool silu) {
    Draw draw;
    const fused::Rows shape{rows, channels, all};
    const int64_t before = all - channels;
    const auto x = drawn<Element>(draw, rows * channels), gradient = drawn<Element>(draw, rows * all), kept = drawn<Element>(draw, rows * all);
    const auto scale = draw.floats(channels), shift = draw.floats(channels), slope = draw.floats(channels),
               offset = draw.floats(channels);
    const Exact<std::conditional_t<std::is_same_v<Element, float>, double, float>> sums(channels), squares(channels);
    const Exact<float> gradient_sums(channels), products(channels);
    const Exact<Element> y(rows * all), result(rows * channels), more(rows * channels);
    fused::channel_moments(shape, x.get(), sums.get(), squares.get());
    // The other part's values, which nobody writes here.
    std::fill(y.get(), y.get() + rows * all, Element{0});
    fused::scale_shift(shape, silu, x.get(), scale.get(), shift.get(), y.get() + before);
    fused::gradient_moments(shape, silu, x.get(), scale.get(), shift.get(), gradient.get() + before,
                            gradient_sums.get(), products.get());
    const fused::Slopes slopes{slope.get(), offset.get()};
    fused::scale_shift_backward(shape, silu, x.get(), scale.get(), shift.get(), gradient.get() + before, slopes,
                                {nullptr, 0}, result.get());
    fused::scale_shift_backward(shape, silu, x.get(), scale.get(), shift.get(), gradient.get() + before, slopes,
                                {kept.get() + before, all}, more.get());
    std::vector<double> of_sums(channels), of_squares(channels), of_gradient(channels), of_products(channels),
        of_y(rows * all), of_result(rows * channels), of_more(rows * channels);
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t c = 0; c < channels; ++c) {
            const int64_t at = row * channels + c, among_all = row * all + before + c;
            const double value = to_float(x[at]), input = value * scale[c] + shift[c], s = sigmoid(input);
            const double g = to_float(gradient[among_all]) * (silu ? s * (1.0 + input * (1.0 - s)) : 1.0);
            of_sums[c] += value;
            of_squares[c] += value * value;
            of_gradient[c] += g;
            of_products[c] += g * value;
            of_y[among_all] = silu ? input * s : input;
            of_result[at] = g * scale[c] + value * slope[c] + offset[c];
            of_more[at] = of_result[at] + to_float(kept[among_all]);
        }
    }
    compare("the moments' sums", sums, of_sums, 1e-5);
    compare("the moments' squares", squares, of_squares, 1e-5);
    compare("the gradient's sums", gradient_sums, of_gradient, 1e-4);
    compare("the gradient's products", products, of_products, 1e-4);
    compare("scale and shift", y, of_y, LOST<Element>);
    compare("the gradient of scale and shift", result, of_result, LOST<Element>);
    compare("that and another gradient", more, of_more, LOST<Element>);
}

template <typename Element> void layer_norm(int64_t rows, int64_t width) {
    Draw draw;
    const auto x = drawn<Element>(draw, rows * width), gradient = drawn<Element>(draw, rows * width), kept = drawn<Element>(draw, rows * width);
    const auto weight = draw.floats(width), bias = draw.floats(width);
    const Exact<Element> y(rows * width), result(rows * width), more(rows * width);
    const Exact<float> statistics(rows * 2);
    // Large, so that one value is no case of its own.
    const float epsilon = 0.1f;
    fused::layer_norm(rows, width, {weight.get(), bias.get()}, epsilon, x.get(), y.get(), statistics.get());
    const auto backward = [&](const Element *kept, Element *to) {
        fused::layer_norm_backward(rows, width, weight.get(), x.get(), statistics.get(), gradient.get(), kept, to);
    };
    backward(nullptr, result.get());
    backward(kept.get(), more.get());
    std::vector<double> of_y(rows * width), of_result(rows * width), of_more(rows * width);
    for (int64_t row = 0; row < rows; ++row) {
        const auto value = [&](int64_t i) { return double(to_float(x[row * width + i])); };
        double mean = 0, variance = 0, sum = 0, product = 0;
        for (int64_t i = 0; i < width; ++i) {
            mean += value(i) / width;
        }
        for (int64_t i = 0; i < width; ++i) {
            variance += (value(i) - mean) * (value(i) - mean) / width;
        }
        const double inverse = 1.0 / std::sqrt(variance + epsilon);
        const auto normal = [&](int64_t i) { return (value(i) - mean) * inverse; };
        const auto slope = [&](int64_t i) { return double(to_float(gradient[row * width + i])) * weight[i]; };
        for (int64_t i = 0; i < width; ++i) {
            sum += slope(i) / width;
            product += slope(i) * normal(i) / width;
        }
        for (int64_t i = 0; i < width; ++i) {
            const int64_t at = row * width + i;
            of_y[at] = normal(i) * weight[i] + bias[i];
            of_result[at] = (slope(i) - sum - normal(i) * product) * inverse;
            of_more[at] = of_result[at] + to_float(kept[at]);
        }
    }
    compare("layer norm", y, of_y, LOST<Element>);
    // Of one value nothing is left but rounding.
    if (width > 1) {
        compare("layer norm's gradient", result, of_result, LOST<Element>);
    }
    compare("that and another gradient", more, of_more, LOST<Element>);
}

template <typename Element> void geglu(int64_t rows, int64_t width) {
    Draw draw;
    const auto x = drawn<Element>(draw, rows * 2 * width), gradient = drawn<Element>(draw, rows * width);
    const Exact<Element> y(rows * width), result(rows * 2 * width);
    fused::geglu(rows, width, x.get(), y.get());
    fused::geglu_backward(rows, width, x.get(), gradient.get(), result.get());
    std::vector<double> of_y(rows * width), of_result(rows * 2 * width);
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < width; ++i) {
            const int64_t at = row * 2 * width + i;
            const double value = to_float(x[at]), gate = to_float(x[at + width]);
            const double g = to_float(gradient[row * width + i]);
            const double below = 0.5 * std::erfc(-gate / std::sqrt(2.0));
            const double density = std::exp(-0.5 * gate * gate) / std::sqrt(2.0 * M_PI);
            of_y[row * width + i] = value * gate * below;
            of_result[at] = g * gate * below;
            of_result[at + width] = g * value * (below + gate * density);
        }
    }
    compare("GEGLU", y, of_y, LOST<Element>);
    compare("GEGLU's gradient", result, of_result, LOST<Element>);
}

template <typename Element> void all_norms(const char *what, const char *with) {
    int shapes = 0;
    for (const int64_t rows : {1, 3, 9, 64}) {
        for (const int64_t channels : {1, 2, 7, 8, 9, 15, 16, 17, 24, 33, 320}) {
            for (const int64_t others : {0, 1, 19}) {
                norms<Element>(rows, channels, channels + others, false);
                norms<Element>(rows, channels, channels + others, true);
                shapes += 2;
            }
            layer_norm<Element>(rows, channels);
            geglu<Element>(rows, channels);
            shapes += 2;
        }
    }
    std::printf("  %s with %s: %d shapes (1 to 320 channels, 1 to 64 rows)\n", what, with, shapes);
}

} // namespace
