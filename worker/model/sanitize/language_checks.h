// The kernels of language_kernels.h beside plain loops in double precision.
#pragma once

#include "../csrc/dropout.h"
#include "../csrc/language_kernels.h"
#include "../csrc/text_kernels.h"
#include "support.h"

namespace {

namespace language = ringtune::language;

template <typename Element> void language_norm(int64_t rows, int64_t width) {
    Draw draw;
    const int64_t count = rows * width;
    const auto x = draw.floats(count), weight = draw.floats(width), bias = draw.floats(width),
               before = draw.floats(count);
    const auto added = drawn<Element>(draw, count), gradient = drawn<Element>(draw, count);
    const Exact<float> sum(count), statistics(rows * 2), residual(count), parts(2 * width);
    const Exact<Element> y(count), low(count);
    const float epsilon = 0.1f; // large, so that one value is no case of its own
    language::add_and_norm<Element>(rows, width, x.get(), added.get(), {weight.get(), bias.get()}, epsilon, sum.get(),
                                    y.get(), statistics.get());
    std::copy(before.get(), before.get() + count, residual.get());
    language::norm_backward<Element>(rows, width, sum.get(), statistics.get(), weight.get(), gradient.get(),
                                     residual.get(), low.get(), parts.get());
    std::vector<double> of_sum(count), of_y(count), of_residual(count), of_parts(2 * width);
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t at = row * width;
        double mean = 0, variance = 0, slopes = 0, products = 0;
        for (int64_t i = 0; i < width; ++i) {
            of_sum[at + i] = double(x[at + i]) + to_float(added[at + i]);
            mean += of_sum[at + i] / width;
        }
        for (int64_t i = 0; i < width; ++i) {
            variance += (of_sum[at + i] - mean) * (of_sum[at + i] - mean) / width;
        }
        const double inverse = 1.0 / std::sqrt(variance + epsilon);
        const auto normal = [&](int64_t i) { return (of_sum[at + i] - mean) * inverse; };
        const auto slope = [&](int64_t i) { return double(to_float(gradient[at + i])) * weight[i]; };
        for (int64_t i = 0; i < width; ++i) {
            slopes += slope(i) / width;
            products += slope(i) * normal(i) / width;
        }
        for (int64_t i = 0; i < width; ++i) {
            of_y[at + i] = normal(i) * weight[i] + bias[i];
            of_residual[at + i] = before[at + i] + (slope(i) - slopes - normal(i) * products) * inverse;
            of_parts[i] += to_float(gradient[at + i]) * normal(i);
            of_parts[width + i] += to_float(gradient[at + i]);
        }
    }
    compare("a sum before its norm", sum, of_sum, 1e-5);
    compare("a norm of a sum", y, of_y, LOST<Element>);
    compare("the stream's gradient", residual, of_residual, 1e-4);
    compare("the same, rounded", low, of_residual, LOST<Element> + 1e-4);
    compare("the gradient of a norm's factors", parts, of_parts, 1e-4);
}

template <typename Element> void language_sweeps(int64_t rows, int64_t width) {
    Draw draw;
    const int64_t count = rows * width;
    const auto x = drawn<Element>(draw, count), before = drawn<Element>(draw, count);
    const auto there = draw.floats(count);
    const Exact<Element> y(count), slope(count);
    const Exact<float> sums(width), target(count);
    language::gelu<Element>(count, x.get(), y.get());
    std::copy(before.get(), before.get() + count, slope.get());
    language::gelu_backward<Element>(count, x.get(), slope.get());
    language::column_sums<Element>(rows, width, x.get(), sums.get());
    std::copy(there.get(), there.get() + count, target.get());
    language::put<Element>(count, x.get(), true, target.get());
    std::vector<double> of_y(count), of_slope(count), of_sums(width), of_target(count);
    for (int64_t at = 0; at < count; ++at) {
        const double value = to_float(x[at]), root = std::sqrt(2.0 / M_PI);
        const double wave = std::tanh(root * (value + 0.044715 * value * value * value));
        of_y[at] = 0.5 * value * (1.0 + wave);
        const double inner = root * (1.0 + 3.0 * 0.044715 * value * value);
        of_slope[at] = to_float(before[at]) * (0.5 * (1.0 + wave) + 0.5 * value * (1.0 - wave * wave) * inner);
        of_sums[at % width] += value;
        of_target[at] = double(there[at]) + value;
    }
    compare("GELU by tanh", y, of_y, LOST<Element>);
    compare("its gradient", slope, of_slope, LOST<Element>);
    compare("sums of columns", sums, of_sums, 1e-4);
    compare("what is put on top", target, of_target, 1e-5);
}

// What a product left turned, in rows that lie apart.
template <typename Element> void language_turned(int64_t rows, int64_t width) {
    Draw draw;
    const int64_t stride = rows + 3;
    const auto x = drawn<Element>(draw, width * stride - 3);
    const auto there = draw.floats(rows * width);
    for (const bool add : {false, true}) {
        const Exact<float> target(rows * width);
        std::copy(there.get(), there.get() + rows * width, target.get());
        language::put_turned<Element>(rows, width, x.get(), stride, add, target.get());
        std::vector<double> expected(rows * width);
        for (int64_t at = 0; at < rows * width; ++at) {
            expected[at] = (add ? double(there[at]) : 0.0) + to_float(x[at % width * stride + at / width]);
        }
        compare("what is put turned", target, expected, 1e-6);
    }
}

// Rows that are added up by their places: some places have none, one has most of them.
void language_rows(int64_t rows, int64_t width) {
    Draw draw;
    const int64_t count = rows + 2;
    const auto x = draw.floats(rows * width), there = draw.floats(count * width);
    const Exact<int64_t> places(rows), starts(count + 1), order(rows);
    for (int64_t row = 0; row < rows; ++row) {
        places[row] = row % 3 == 0 ? row * row % count : count - 1;
    }
    language::by_places(rows, places.get(), count, starts.get(), order.get());
    for (const bool add : {false, true}) {
        const Exact<float> target(count * width);
        std::vector<double> sums(count * width);
        for (int64_t at = 0; at < count * width; ++at) {
            target[at] = there[at];
            sums[at] = add ? there[at] : 0.0;
        }
        for (int64_t at = 0; at < rows * width; ++at) {
            sums[places[at / width] * width + at % width] += x[at];
        }
        for (int64_t place = 0; place < count; ++place) {
            language::sum_of_rows(width, x.get(), order.get() + starts[place], starts[place + 1] - starts[place], add,
                                  target.get() + place * width);
        }
        compare("rows by their places", target, sums, 1e-4);
    }
    for (int64_t at = 1; at < rows; ++at) {
        const int64_t before = order[at - 1], row = order[at];
        if (places[before] > places[row] || (places[before] == places[row] && before > row)) {
            std::puts("rows of one place are not in their order");
            std::exit(1);
        }
    }
}

template <typename Element> void language_loss(int64_t rows, int64_t width) {
    Draw draw;
    const auto logits = drawn<Element>(draw, rows * width);
    const Exact<int64_t> targets(rows);
    const Exact<float> losses(rows);
    std::vector<double> of_losses(rows), of_slopes(rows * width);
    for (int64_t row = 0; row < rows; ++row) {
        targets[row] = row * 7 % width;
        double sum = 0.0;
        for (int64_t at = 0; at < width; ++at) {
            sum += std::exp(double(to_float(logits[row * width + at])));
        }
        of_losses[row] = std::log(sum) - to_float(logits[row * width + targets[row]]);
        for (int64_t at = 0; at < width; ++at) {
            of_slopes[row * width + at] =
                (std::exp(double(to_float(logits[row * width + at]))) / sum - (at == targets[row])) * 0.5;
        }
    }
    language::cross_entropy<Element>(rows, width, logits.get(), targets.get(), 0.5f, nullptr, losses.get());
    compare("losses without a gradient", losses, of_losses, 1e-5);
    const Exact<float> powers(width);
    language::cross_entropy<Element>(rows, width, logits.get(), targets.get(), 0.5f, powers.get(), losses.get());
    compare("losses", losses, of_losses, 1e-5);
    compare("their gradient", logits, of_slopes, LOST<Element>);
}

void language_step(int64_t count) {
    Draw draw;
    const auto gradient = draw.floats(count), first = draw.floats(count), mean = draw.floats(count),
               deviation = draw.floats(count);
    const Exact<float> parameter(count), new_mean(count), square(count);
    const Exact<Bf16> low(count);
    std::vector<double> of_parameter(count), of_mean(count), of_square(count);
    const language::AdamW step{0.5f, 0.99f, 0.1f, 0.95f, 0.05f, 0.3f, -0.01f, 1e-8f};
    for (int64_t at = 0; at < count; ++at) {
        parameter[at] = first[at];
        new_mean[at] = mean[at];
        square[at] = deviation[at] * deviation[at];
        const double slope = gradient[at] * 0.5;
        of_mean[at] = mean[at] + (slope - mean[at]) * 0.1;
        of_square[at] = double(square[at]) * 0.95 + slope * slope * 0.05;
        of_parameter[at] = first[at] * 0.99 - 0.01 * of_mean[at] / (std::sqrt(of_square[at]) / 0.3 + 1e-8);
    }
    language::adamw(count, step, gradient.get(), {parameter.get(), new_mean.get(), square.get(), low.get()});
    compare("parameters after a step", parameter, of_parameter, 1e-5);
    compare("the same, rounded", low, of_parameter, ONCE);
    compare("means after a step", new_mean, of_mean, 1e-5);
    compare("squares after a step", square, of_square, 1e-5);
    const bool finite = language::finite(count, gradient.get());
    gradient[count - 1] = __builtin_inff();
    if (!finite || language::finite(count, gradient.get())) {
        std::puts("a number that is not finite was not seen, or one was that is");
        std::exit(1);
    }
    gradient[count - 1] = 0.0f;
    double rest = 0.0;
    for (int64_t at = 0; at < count; ++at) {
        rest += double(gradient[at]) * gradient[at];
    }
    if (!(std::abs(language::squares(count, gradient.get()) - rest) <= 1e-9 * rest)) {
        std::puts("a sum of squares differs from the plain loop");
        std::exit(1);
    }
}

// Dropout's masks: the same from the processor's vectors as word by word, to the bit; and what they are multiplied with.
template <typename Element> void language_dropout(int64_t rows, int64_t width) {
    Draw draw;
    const uint32_t names[2][4] = {{1, 2, 3, 4}, {0xffffffff, 0x12345678, 0, 0x80000000}};
    const ringtune_mask mask{names, 2, 0x40000000, 4.0f / 3.0f};
    const auto x = drawn<Element>(draw, width), before = drawn<Element>(draw, width);
    const Exact<float> factors(width), portable(width);
    std::vector<double> of_x(width);
    for (int64_t row = 0; row < rows; ++row) {
        ringtune::dropout::factors(mask, row % 2, row, width, factors.get());
        ringtune::dropout::portable_factors(mask, row % 2, row, width, portable.get());
        if (std::memcmp(factors.get(), portable.get(), size_t(width) * sizeof(float)) != 0) {
            std::puts("a mask differs from the portable one");
            std::exit(1);
        }
        std::copy(before.get(), before.get() + width, x.get());
        language::multiply<Element>(width, factors.get(), x.get());
        for (int64_t at = 0; at < width; ++at) {
            of_x[at] = double(to_float(before[at])) * factors[at];
        }
        compare("what is dropped of a row", x, of_x, LOST<Element>);
    }
}

// One row times a matrix, and attention over what is kept.
template <typename Element> void text_kernels(int64_t rows, int64_t width) {
    Draw draw;
    const auto x = drawn<Element>(draw, width), matrix = drawn<Element>(draw, rows * width),
               bias = drawn<Element>(draw, rows);
    const Exact<float> factors(width), plain(rows), weights(rows);
    const Exact<Element> result(rows), attended(width);
    std::vector<double> sums(rows), of_plain(rows), of_attended(width);
    double most = -1e300, total = 0.0;
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t at = 0; at < width; ++at) {
            of_plain[row] += double(to_float(x[at])) * to_float(matrix[row * width + at]);
        }
        sums[row] = of_plain[row] + to_float(bias[row]);
        most = std::max(most, of_plain[row] / std::sqrt(double(width)));
    }
    for (int64_t row = 0; row < rows; ++row) {
        const double power = std::exp(of_plain[row] / std::sqrt(double(width)) - most);
        total += power;
        for (int64_t at = 0; at < width; ++at) {
            of_attended[at] += power * to_float(matrix[row * width + at]);
        }
    }
    for (double &value : of_attended) {
        value /= total;
    }
    ringtune::text::spread(width, x.get(), factors.get());
    ringtune::text::times_rows<Element, Element>(rows, width, factors.get(), matrix.get(), bias.get(), result.get());
    ringtune::text::times_rows<Element, float>(rows, width, factors.get(), matrix.get(), nullptr, plain.get());
    ringtune::text::attend<Element>(rows, width, x.get(), matrix.get(), matrix.get(), weights.get(), attended.get());
    compare("one row times a matrix", result, sums, LOST<Element>);
    compare("the same in fp32", plain, of_plain, 1e-5);
    compare("attention over what is kept", attended, of_attended, LOST<Element>);
}

template <typename Element> void language_kernels(int64_t rows, int64_t width) {
    language_norm<Element>(rows, width);
    language_sweeps<Element>(rows, width);
    language_turned<Element>(rows, width);
    language_loss<Element>(rows, width);
    language_dropout<Element>(rows, width);
    text_kernels<Element>(rows, width);
}

} // namespace
