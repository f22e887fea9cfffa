// Group normalisation with SiLU as libtorch sees it: an autograd function around fused_kernels.h that keeps only its
// input for the backward pass. Weights that are trained have handles (weight_gradient.cpp). Sums are over fixed stretches of rows, added
// up in order, so that the bits do not depend on the number of threads.
#include "fused_tensors.h"

#include "blocks.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <vector>

namespace ringtune {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One tensor [batch, channels, height, width] in channels-last order, or several whose channels follow each other.
using Parts = std::vector<Tensor>;

// Some positions of one picture.
struct Stretch {
    int64_t picture;
    int64_t task;  // its number among the stretches of all pictures
    int64_t first; // its first row among the rows of all pictures
    int64_t rows;
};

// The parts as pictures of all their channels, cut into stretches of positions.
struct Pictures {
    const Parts &parts;
    int64_t batch, channels, positions, stretches;

    explicit Pictures(const Parts &parts_in)
        : parts(parts_in), batch(parts[0].size(0)), channels(0), positions(parts[0].size(2) * parts[0].size(3)),
          stretches((positions + STRETCH - 1) / STRETCH) {
        for (const Tensor &part : parts) {
            channels += part.size(1);
        }
    }

    // Calls body(part's number, stretch, rows, the part's first channel) for all, on several threads.
    template <typename Body> void for_stretches(const Body &body) const {
        at::parallel_for(0, batch * stretches, 1, [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; ++task) {
                const int64_t picture = task / stretches, first = task % stretches * STRETCH;
                const Stretch stretch{picture, task, picture * positions + first, std::min(STRETCH, positions - first)};
                int64_t channel = 0;
                for (size_t part = 0; part < parts.size(); ++part) {
                    const fused::Rows rows{stretch.rows, parts[part].size(1), channels};
                    body(part, stretch, rows, channel);
                    channel += rows.channels;
                }
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
template <typename Sum> std::vector<double> totals(const Pictures &pictures, const Buffer<Sum> &partial) {
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

template <typename Element> Coefficients coefficients(const Pictures &pictures, const Norm &norm) {
    using Sum = std::conditional_t<std::is_same_v<Element, float>, double, float>;
    const int64_t channels = pictures.channels, each = channels / norm.groups;
    const auto partial = allocate<Sum>(pictures.batch * pictures.stretches * 2 * channels);
    pictures.for_stretches([&](size_t part, Stretch stretch, fused::Rows rows, int64_t channel) {
        Sum *sums = &partial[stretch.task * 2 * channels + channel];
        fused::channel_moments(rows, elements<Element>(pictures.parts[part]) + stretch.first * rows.channels, sums,
                               sums + channels);
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

template <typename Element> Tensor group_norm_forward(NormState &state, const Parts &parts) {
    RECORD_FUNCTION("ringtune::group_norm", (std::vector<c10::IValue>(parts.begin(), parts.end())));
    const Pictures pictures(parts);
    state.coefficients = coefficients<Element>(pictures, state.norm);
    const Tensor &first = parts[0];
    const Tensor y = at::empty({first.size(0), pictures.channels, first.size(2), first.size(3)}, first.options(),
                               at::MemoryFormat::ChannelsLast);
    pictures.for_stretches([&](size_t part, Stretch stretch, fused::Rows rows, int64_t channel) {
        const int64_t at = stretch.picture * pictures.channels + channel;
        fused::scale_shift(rows, state.norm.silu, elements<Element>(parts[part]) + stretch.first * rows.channels,
                           &state.coefficients.scale[at], &state.coefficients.shift[at],
                           mutable_elements<Element>(y) + stretch.first * rows.all + channel);
    });
    return y;
}

// Whether its rows follow each other at one distance, as those of a part of more channels do.
bool has_rows(const Tensor &x) {
    return x.stride(1) == 1 && x.stride(2) == x.size(3) * x.stride(3) &&
           (x.size(0) == 1 || x.stride(0) == x.size(2) * x.stride(2));
}

template <typename Element> fused::Kept<Element> kept_rows(const Tensor &kept, int64_t first) {
    if (!kept.defined()) {
        return {nullptr, 0};
    }
    // From place to place. A side of one place may have any stride: with one place a picture, only pictures lie side by side.
    const int64_t side = kept.size(3) > 1 ? 3 : kept.size(2) > 1 ? 2 : 0;
    return {elements<Element>(kept) + first * kept.stride(side), kept.stride(side)};
}

// The gradients of weight and bias, [channels] each, of what each channel's gradient sums up to, alone and times the input.
std::pair<Tensor, Tensor> of_parameters(const NormState &state, const Pictures &pictures, const std::vector<double> &moments) {
    const Norm &norm = state.norm;
    const int64_t channels = pictures.channels, each = channels / norm.groups;
    std::vector<double> weight(channels, 0.0), bias(channels, 0.0);
    for (int64_t picture = 0; picture < pictures.batch; ++picture) {
        const double *sums = &moments[picture * 2 * channels], *products = sums + channels;
        for (int64_t c = 0; c < channels; ++c) {
            const int64_t group = picture * norm.groups + c / each;
            const double added = norm.added.empty() ? 0.0 : norm.added[picture * channels + c];
            const double centred = products[c] + (added - state.coefficients.mean[group]) * sums[c];
            weight[c] += centred * state.coefficients.inverse[group];
            bias[c] += sums[c];
        }
    }
    return {at::tensor(weight, at::kFloat), at::tensor(bias, at::kFloat)};
}

// With g the gradient of the normalised values times the weight and n values a group:
// dx = (g - mean(g) - xhat * mean(g * xhat)) / deviation. `results`: to write to, undefined where nobody wants it;
// `kept`: added to them, where it is defined; each has_rows(). Gives the gradients of weight and bias, [channels] each.
template <typename Element>
std::pair<Tensor, Tensor> group_norm_backward(const NormState &state, const Parts &parts, const Tensor &gradient,
                                              const Parts &kept, const Parts &results) {
    RECORD_FUNCTION("ringtune::group_norm_backward", (std::vector<c10::IValue>(parts.begin(), parts.end())));
    const Pictures pictures(parts);
    const Norm &norm = state.norm;
    const Coefficients &known = state.coefficients;
    const int64_t channels = pictures.channels, each = channels / norm.groups;
    // 1. Sums over each channel.
    const auto partial = allocate<float>(pictures.batch * pictures.stretches * 2 * channels);
    pictures.for_stretches([&](size_t part, Stretch stretch, fused::Rows rows, int64_t channel) {
        const int64_t at = stretch.picture * channels + channel;
        float *sums = &partial[stretch.task * 2 * channels + channel];
        fused::gradient_moments(rows, norm.silu, elements<Element>(parts[part]) + stretch.first * rows.channels, &known.scale[at],
                                &known.shift[at], elements<Element>(gradient) + stretch.first * rows.all + channel, sums,
                                sums + channels);
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
    // 3. The gradients.
    pictures.for_stretches([&](size_t part, Stretch stretch, fused::Rows rows, int64_t channel) {
        if (!results[part].defined()) {
            return;
        }
        const int64_t at = stretch.picture * channels + channel, place = stretch.first * rows.channels;
        fused::scale_shift_backward(rows, norm.silu, elements<Element>(parts[part]) + place, &known.scale[at], &known.shift[at],
                                    elements<Element>(gradient) + stretch.first * rows.all + channel,
                                    {&slope[at], &offset_of[at]}, kept_rows<Element>(kept[part], stretch.first),
                                    mutable_elements<Element>(results[part]) + place);
    });
    return of_parameters(state, pictures, moments);
}

// Gives the inputs back behind the result: whoever goes on with those has their gradients added in the same sweep.
struct GroupNormFunction : torch::autograd::Function<GroupNormFunction> {
    static variable_list forward(AutogradContext *context, const Tensor &x, const std::optional<Tensor> &skip,
                                 const c10::intrusive_ptr<NormState> &state, const std::optional<Tensor> &weight_end,
                                 const std::optional<Tensor> &bias_end) {
        at::AutoDispatchBelowADInplaceOrView below;
        context->set_materialize_grads(false);
        Parts inputs{x};
        if (skip) {
            inputs.push_back(*skip);
        }
        Parts parts;
        for (const Tensor &input : inputs) {
            parts.push_back(channels_last(input));
        }
        variable_list outputs{
            by_kind(x, [&]<typename Element>(Element) { return group_norm_forward<Element>(*state, parts); })};
        for (const Tensor &input : inputs) {
            // Not the input itself, which libtorch would make a view of, with other strides where there is one picture:
            // what follows would no longer see that it is channels-last.
            outputs.push_back(at::alias(input));
        }
        context->save_for_backward(parts);
        context->saved_data["state"] = c10::IValue::make_capsule(state);
        context->saved_data["trains_weight"] = weight_end.has_value();
        context->saved_data["trains_bias"] = bias_end.has_value();
        return outputs;
    }

    static variable_list backward(AutogradContext *context, const variable_list &gradients) {
        variable_list results(5);
        if (!gradients[0].defined()) {
            std::copy(gradients.begin() + 1, gradients.end(), results.begin());
            return results;
        }
        const Parts parts = context->get_saved_variables();
        Parts kept(parts.size()), wanted(parts.size());
        for (size_t part = 0; part < parts.size(); ++part) {
            if (!context->needs_input_grad(part)) {
                continue;
            }
            results[part] = wanted[part] =
                at::empty_like(parts[part], parts[part].options(), at::MemoryFormat::ChannelsLast);
            if (gradients[1 + part].defined()) {
                const Tensor &other = gradients[1 + part];
                kept[part] = has_rows(other) ? other : channels_last(other);
            }
        }
        const auto state = context->saved_data["state"].toCapsule();
        const Tensor gradient = channels_last(gradients[0]);
        const auto [of_weight, of_bias] = by_kind(gradient, [&]<typename Element>(Element) {
            return group_norm_backward<Element>(static_cast<const NormState &>(*state), parts, gradient, kept, wanted);
        });
        if (context->saved_data["trains_weight"].toBool()) {
            results[3] = of_weight;
        }
        if (context->saved_data["trains_bias"].toBool()) {
            results[4] = of_bias;
        }
        return results;
    }
};

void check_group_norm(const Tensor &x, const Tensor &skip, const Tensor &added, const Norm &norm,
                      const Tensor &weight, const Tensor &bias) {
    check_frozen("group norm", "weight", weight);
    check_frozen("group norm", "bias", bias);
    check_frozen("group norm", "added values", added);
    TORCH_CHECK(x.dim() >= 2, "group norm takes [batch, channels, ...], not ", x.sizes());
    TORCH_CHECK(!skip.defined() || (x.dim() == 4 && skip.dim() == 4 && skip.size(0) == x.size(0) &&
                                    skip.size(2) == x.size(2) && skip.size(3) == x.size(3) &&
                                    skip.scalar_type() == x.scalar_type()),
                "group norm takes two inputs of one kind that differ in channels alone, not ", x.sizes(), " and ",
                skip.defined() ? skip.sizes() : at::IntArrayRef());
    const int64_t channels = x.size(1) + (skip.defined() ? skip.size(1) : 0);
    TORCH_CHECK(norm.groups >= 1 && channels % norm.groups == 0, "group norm cannot cut ", channels,
                " channels into ", norm.groups, " groups");
    for (const Tensor &each : {weight, bias}) {
        TORCH_CHECK(each.dim() == 1 && each.size(0) == channels, "group norm of ", channels,
                    " channels takes as many weights and biases, not ", each.sizes());
    }
    TORCH_CHECK(!added.defined() || (x.dim() == 4 && added.dim() == 2 && added.size(0) == x.size(0) &&
                                     added.size(1) == channels),
                "group norm of ", x.sizes(), " adds [batch, channels], not ", added.sizes());
}

// The result, and the inputs for whoever goes on with them. `skip` and `added` may be undefined.
variable_list group_norm(const Tensor &x, const Tensor &skip, const Tensor &added, Norm norm, const Tensor &weight,
                         const Tensor &bias, const Ends &ends) {
    check_group_norm(x, skip, added, norm, weight, bias);
    if (x.dim() == 4 && is_fused(x) && (!skip.defined() || is_fused(skip))) {
        auto state = c10::make_intrusive<NormState>();
        norm.weight = floats(weight);
        norm.bias = floats(bias);
        if (added.defined()) {
            norm.added = floats(added);
        }
        state->norm = std::move(norm);
        variable_list results =
            GroupNormFunction::apply(x, skip.defined() ? std::optional(skip) : std::nullopt, state, ends.weight, ends.bias);
        // Behind the function even an input without a gradient would have one.
        for (size_t part = 1; part < results.size(); ++part) {
            const Tensor &input = part == 1 ? x : skip;
            if (!input.requires_grad()) {
                results[part] = input;
            }
        }
        return results;
    }
    // What is added may be more exact than x; the sum is then normalised before it is rounded.
    const Tensor whole = skip.defined() ? at::cat({x, skip}, 1) : x;
    const Tensor input = added.defined() ? whole + added.unsqueeze(-1).unsqueeze(-1) : whole;
    const Tensor y = at::group_norm(input, norm.groups, with_end(weight, ends.weight), with_end(bias, ends.bias), norm.epsilon)
                         .to(x.scalar_type());
    variable_list results{norm.silu ? at::silu(y) : y, x};
    if (skip.defined()) {
        results.push_back(skip);
    }
    return results;
}

} // namespace

} // namespace ringtune

extern "C" bool ringtune_group_norm(const at::Tensor *x, const at::Tensor *skip, const at::Tensor *added,
                                    int64_t groups, const at::Tensor *weight, const at::Tensor *bias,
                                    const at::Tensor *weight_end, const at::Tensor *bias_end, double epsilon, bool silu,
                                    at::Tensor **results) {
    return ringtune::guarded(false, [&] {
        const auto or_none = [](const at::Tensor *tensor) { return tensor == nullptr ? at::Tensor() : *tensor; };
        return ringtune::hand_over(ringtune::group_norm(*x, or_none(skip), or_none(added),
                                                        {groups, epsilon, silu, {}, {}, {}}, *weight, *bias,
                                                        {ringtune::present(weight_end), ringtune::present(bias_end)}),
                                   results);
    });
}
