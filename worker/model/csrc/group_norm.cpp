// Group normalisation with SiLU, and GEGLU, as libtorch sees them: autograd functions around fused_kernels.h that
// keep only their input for the backward pass. Weights are frozen: they have no gradient. Sums are over fixed
// stretches of rows, added up in order, so that the bits do not depend on the number of threads.
#include "fused_kernels.h"

#include "attention_kernels.h"
#include "shim.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <vector>

namespace ringtune {

namespace {

using at::Tensor;
using fused::Bf16;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows (positions) in one stretch.
constexpr int64_t STRETCH = 64;

bool fits(const Tensor &x) {
    return flash::supported() && x.scalar_type() == at::kBFloat16 && x.device().is_cpu() && x.numel() > 0;
}

const Bf16 *bits(const Tensor &tensor) { return static_cast<const Bf16 *>(tensor.const_data_ptr()); }
Bf16 *mutable_bits(const Tensor &tensor) { return static_cast<Bf16 *>(tensor.data_ptr()); }

// A [batch, channels, height, width] tensor in channels-last order, cut into stretches of positions.
struct Pictures {
    int64_t batch, channels, positions, stretches;

    explicit Pictures(const Tensor &x)
        : batch(x.size(0)), channels(x.size(1)), positions(x.size(2) * x.size(3)),
          stretches((positions + STRETCH - 1) / STRETCH) {}

    // Calls body(picture, stretch, rows, offset of the first value) for all, on several threads.
    template <typename Body> void for_stretches(const Body &body) const {
        at::parallel_for(0, batch * stretches, 1, [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; ++task) {
                const int64_t picture = task / stretches, first = task % stretches * STRETCH;
                const fused::Rows rows{std::min(STRETCH, positions - first), channels};
                body(picture, task, rows, (picture * positions + first) * channels);
            }
        });
    }
};

// What a group normalisation is, but for its input.
struct Norm {
    int64_t groups;
    double epsilon;
    bool silu;
    std::vector<float> weight, bias; // [channels]
    std::vector<float> added;        // [batch * channels], added to the input first; or empty
};

std::vector<float> floats(const Tensor &tensor) {
    const Tensor values = tensor.to(at::kFloat).contiguous();
    const float *data = values.const_data_ptr<float>();
    return {data, data + values.numel()};
}

// Per picture and channel: y = act(x * scale + shift).
struct Coefficients {
    std::vector<float> scale, shift;
    std::vector<double> mean, inverse; // per picture and group: mean and 1 / deviation of the input
};

// Adds up partial sums [batch * stretches, 2, channels] over the stretches, in order: [batch, 2, channels].
std::vector<double> totals(const Pictures &pictures, const std::vector<float> &partial) {
    const int64_t width = 2 * pictures.channels;
    std::vector<double> sums(pictures.batch * width, 0.0);
    for (int64_t task = 0; task < pictures.batch * pictures.stretches; ++task) {
        double *sum = &sums[task / pictures.stretches * width];
        for (int64_t column = 0; column < width; ++column) {
            sum[column] += partial[task * width + column];
        }
    }
    return sums;
}

Coefficients coefficients(const Pictures &pictures, const Norm &norm, const Tensor &x) {
    const int64_t channels = pictures.channels, each = channels / norm.groups;
    std::vector<float> partial(pictures.batch * pictures.stretches * 2 * channels);
    pictures.for_stretches([&](int64_t, int64_t task, fused::Rows rows, int64_t offset) {
        float *sums = &partial[task * 2 * channels];
        fused::channel_moments(rows, bits(x) + offset, sums, sums + channels);
    });
    const std::vector<double> moments = totals(pictures, partial);
    Coefficients result{std::vector<float>(pictures.batch * channels), std::vector<float>(pictures.batch * channels),
                        std::vector<double>(pictures.batch * norm.groups),
                        std::vector<double>(pictures.batch * norm.groups)};
    const double positions = static_cast<double>(pictures.positions), count = positions * each;
    for (int64_t group = 0; group < pictures.batch * norm.groups; ++group) {
        const int64_t picture = group / norm.groups, first = group % norm.groups * each;
        const double *sums = &moments[picture * 2 * channels], *squares = sums + channels;
        double sum = 0.0, square = 0.0;
        for (int64_t c = first; c < first + each; ++c) {
            const double added = norm.added.empty() ? 0.0 : norm.added[picture * channels + c];
            sum += sums[c] + positions * added;
            square += squares[c] + 2.0 * added * sums[c] + positions * added * added;
        }
        const double mean = sum / count, variance = square / count - mean * mean;
        // Rounding can make a constant group's variance negative; NaN must stay NaN.
        const double inverse = 1.0 / std::sqrt((variance < 0.0 ? 0.0 : variance) + norm.epsilon);
        result.mean[group] = mean;
        result.inverse[group] = inverse;
        for (int64_t c = first; c < first + each; ++c) {
            const double added = norm.added.empty() ? 0.0 : norm.added[picture * channels + c];
            const double scale = norm.weight[c] * inverse;
            result.scale[picture * channels + c] = static_cast<float>(scale);
            result.shift[picture * channels + c] = static_cast<float>(norm.bias[c] + (added - mean) * scale);
        }
    }
    return result;
}

// The norm and its coefficients, carried from the forward to the backward pass.
struct NormState : torch::CustomClassHolder {
    Norm norm;
    Coefficients coefficients;
};

Tensor channels_last(const Tensor &x) { return x.contiguous(at::MemoryFormat::ChannelsLast); }

Tensor group_norm_forward(NormState &state, const Tensor &x) {
    const Pictures pictures(x);
    state.coefficients = coefficients(pictures, state.norm, x);
    Tensor y = at::empty_like(x, x.options(), at::MemoryFormat::ChannelsLast);
    pictures.for_stretches([&](int64_t picture, int64_t, fused::Rows rows, int64_t offset) {
        fused::scale_shift(rows, state.norm.silu, bits(x) + offset,
                           &state.coefficients.scale[picture * pictures.channels],
                           &state.coefficients.shift[picture * pictures.channels], mutable_bits(y) + offset);
    });
    return y;
}

// With g the gradient of the normalised values times the weight and n values a group:
// dx = (g - mean(g) - xhat * mean(g * xhat)) / deviation.
Tensor group_norm_backward(const NormState &state, const Tensor &x, const Tensor &gradient) {
    const Pictures pictures(x);
    const Norm &norm = state.norm;
    const Coefficients &known = state.coefficients;
    const int64_t channels = pictures.channels, each = channels / norm.groups;
    // 1. Sums over each channel.
    std::vector<float> partial(pictures.batch * pictures.stretches * 2 * channels);
    pictures.for_stretches([&](int64_t picture, int64_t task, fused::Rows rows, int64_t offset) {
        float *sums = &partial[task * 2 * channels];
        fused::gradient_moments(rows, norm.silu, bits(x) + offset, &known.scale[picture * channels],
                                &known.shift[picture * channels], bits(gradient) + offset, sums, sums + channels);
    });
    const std::vector<double> moments = totals(pictures, partial);
    // 2. From them what multiplies x and what is added, per channel.
    std::vector<float> slope(pictures.batch * channels), offset_of(pictures.batch * channels);
    for (int64_t group = 0; group < pictures.batch * norm.groups; ++group) {
        const int64_t picture = group / norm.groups, first = group % norm.groups * each;
        const double *sums = &moments[picture * 2 * channels], *products = sums + channels;
        const double mean = known.mean[group], inverse = known.inverse[group];
        const auto added_to = [&](int64_t c) {
            return norm.added.empty() ? 0.0 : static_cast<double>(norm.added[picture * channels + c]);
        };
        double sum = 0.0, product = 0.0;
        for (int64_t c = first; c < first + each; ++c) {
            sum += norm.weight[c] * sums[c];
            product += norm.weight[c] * (products[c] + added_to(c) * sums[c]);
        }
        const double count = static_cast<double>(pictures.positions * each);
        const double factor = -(product - sum * mean) * inverse * inverse * inverse / count;
        for (int64_t c = first; c < first + each; ++c) {
            slope[picture * channels + c] = static_cast<float>(factor);
            offset_of[picture * channels + c] =
                static_cast<float>(factor * (added_to(c) - mean) - sum * inverse / count);
        }
    }
    // 3. The gradient.
    Tensor result = at::empty_like(x, x.options(), at::MemoryFormat::ChannelsLast);
    pictures.for_stretches([&](int64_t picture, int64_t, fused::Rows rows, int64_t offset) {
        const int64_t first = picture * channels;
        fused::scale_shift_backward(rows, norm.silu, bits(x) + offset, &known.scale[first], &known.shift[first],
                                    bits(gradient) + offset, &slope[first], &offset_of[first],
                                    mutable_bits(result) + offset);
    });
    return result;
}

struct GroupNormFunction : torch::autograd::Function<GroupNormFunction> {
    static Tensor forward(AutogradContext *context, const Tensor &x_in, c10::intrusive_ptr<NormState> state) {
        at::AutoDispatchBelowADInplaceOrView below;
        const Tensor x = channels_last(x_in);
        Tensor y = group_norm_forward(*state, x);
        context->save_for_backward({x});
        context->saved_data["state"] = c10::IValue::make_capsule(state);
        return y;
    }

    static variable_list backward(AutogradContext *context, variable_list gradients) {
        const Tensor x = context->get_saved_variables()[0];
        const auto state = context->saved_data["state"].toCapsule();
        return {group_norm_backward(static_cast<const NormState &>(*state), x, channels_last(gradients[0])),
                Tensor()};
    }
};

struct GegluFunction : torch::autograd::Function<GegluFunction> {
    static Tensor forward(AutogradContext *context, const Tensor &x_in) {
        at::AutoDispatchBelowADInplaceOrView below;
        const Tensor x = x_in.contiguous();
        auto shape = x.sizes().vec();
        shape.back() /= 2;
        Tensor y = at::empty(shape, x.options());
        const int64_t width = shape.back();
        at::parallel_for(0, y.numel() / width, STRETCH, [&](int64_t begin, int64_t end) {
            fused::geglu(end - begin, width, bits(x) + begin * 2 * width, mutable_bits(y) + begin * width);
        });
        context->save_for_backward({x});
        return y;
    }

    static variable_list backward(AutogradContext *context, variable_list gradients) {
        const Tensor x = context->get_saved_variables()[0];
        const Tensor gradient = gradients[0].contiguous();
        Tensor result = at::empty(x.sizes(), x.options());
        const int64_t width = x.size(-1) / 2;
        at::parallel_for(0, gradient.numel() / width, STRETCH, [&](int64_t begin, int64_t end) {
            fused::geglu_backward(end - begin, width, bits(x) + begin * 2 * width, bits(gradient) + begin * width,
                                  mutable_bits(result) + begin * 2 * width);
        });
        return {result};
    }
};

void check_group_norm(const Tensor &x, const Tensor &added, int64_t groups, const Tensor &weight, const Tensor &bias) {
    check_frozen("group norm", "weight", weight);
    check_frozen("group norm", "bias", bias);
    check_frozen("group norm", "added values", added);
    TORCH_CHECK(x.dim() >= 2, "group norm takes [batch, channels, ...], not ", x.sizes());
    const int64_t channels = x.size(1);
    TORCH_CHECK(groups >= 1 && channels % groups == 0, "group norm cannot cut ", channels, " channels into ", groups,
                " groups");
    for (const Tensor &each : {weight, bias}) {
        TORCH_CHECK(each.dim() == 1 && each.size(0) == channels, "group norm of ", channels,
                    " channels takes as many weights and biases, not ", each.sizes());
    }
    TORCH_CHECK(!added.defined() || (x.dim() == 4 && added.dim() == 2 && added.size(0) == x.size(0) &&
                                     added.size(1) == channels),
                "group norm of ", x.sizes(), " adds [batch, channels], not ", added.sizes());
}

at::Tensor group_norm(const Tensor &x, const Tensor &added, int64_t groups, const Tensor &weight, const Tensor &bias,
                      double epsilon, bool silu) {
    check_group_norm(x, added, groups, weight, bias);
    if (x.dim() == 4 && fits(x)) {
        auto state = c10::make_intrusive<NormState>();
        state->norm = {groups, epsilon, silu, floats(weight), floats(bias), {}};
        if (added.defined()) {
            state->norm.added = floats(added);
        }
        return GroupNormFunction::apply(x, state);
    }
    // What is added may be more exact than x; the sum is then normalised before it is rounded.
    const Tensor input = added.defined() ? x + added.unsqueeze(-1).unsqueeze(-1) : x;
    const Tensor y = at::group_norm(input, groups, weight, bias, epsilon).to(x.scalar_type());
    return silu ? at::silu(y) : y;
}

at::Tensor geglu(const Tensor &x) {
    TORCH_CHECK(x.dim() >= 1 && x.size(-1) % 2 == 0, "GEGLU halves its last dimension, which ", x.sizes(),
                " does not allow");
    if (fits(x)) {
        return GegluFunction::apply(x);
    }
    const auto halves = x.chunk(2, -1);
    return halves[0] * at::gelu(halves[1]);
}

} // namespace

} // namespace ringtune

extern "C" {

at::Tensor *ringtune_group_norm(const at::Tensor *x, const at::Tensor *added, int64_t groups,
                                const at::Tensor *weight, const at::Tensor *bias, double epsilon, bool silu) {
    return ringtune::guarded<at::Tensor *>(nullptr, [&] {
        return new at::Tensor(ringtune::group_norm(*x, added == nullptr ? at::Tensor() : *added, groups, *weight,
                                                   *bias, epsilon, silu));
    });
}

at::Tensor *ringtune_geglu(const at::Tensor *x) {
    return ringtune::guarded<at::Tensor *>(nullptr, [&] { return new at::Tensor(ringtune::geglu(*x)); });
}

} // extern "C"
