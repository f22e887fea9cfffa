// Group norm's and GEGLU's sweeps, in the words of lanes_sixteen.h and lanes_eight.h. Included once for each
// kind of Element and width, in a namespace of its own.

namespace {

RINGTUNE_TARGET inline Vector sigmoid(Vector x) {
    return reciprocal(plus(all(1.0f), exp2_of(times(x, all(-LOG2_E)))));
}

// Gradient before the activation, given the one behind it and the activation's input.
template <bool SILU> RINGTUNE_TARGET inline Vector through_activation(Vector gradient, Vector input) {
    if constexpr (!SILU) {
        return gradient;
    }
    const Vector one = all(1.0f), s = sigmoid(input);
    const Vector slope = times(s, times_plus(input, minus(one, s), one));
    return times(gradient, slope);
}

template <bool SILU>
RINGTUNE_TARGET void scale_shift_of(Rows rows, const Element *x, const float *scale, const float *shift, Element *y) {
    for (int64_t row = 0; row < rows.count; ++row) {
        for (int64_t c = 0; c < rows.channels; c += LANES) {
            const Lanes lanes = lanes_before(c, rows.channels);
            Vector value =
                times_plus(load(lanes, x + row * rows.channels + c), load(lanes, scale + c), load(lanes, shift + c));
            if constexpr (SILU) {
                value = times(value, sigmoid(value));
            }
            store(lanes, y + row * rows.all + c, value);
        }
    }
}

template <bool SILU>
RINGTUNE_TARGET void gradient_moments_of(Rows rows, const Element *x, const float *scale, const float *shift,
                                         const Element *gradient, float *sums, float *products) {
    for (int64_t c = 0; c < rows.channels; c += LANES) {
        const Lanes lanes = lanes_before(c, rows.channels);
        const Vector factor = load(lanes, scale + c);
        const Vector term = load(lanes, shift + c);
        Vector sum = zero(), product = zero();
        for (int64_t row = 0; row < rows.count; ++row) {
            const Vector value = load(lanes, x + row * rows.channels + c);
            const Vector g = through_activation<SILU>(load(lanes, gradient + row * rows.all + c),
                                                      times_plus(value, factor, term));
            sum = plus(sum, g);
            product = times_plus(g, value, product);
        }
        store(lanes, sums + c, sum);
        store(lanes, products + c, product);
    }
}

template <bool SILU, bool KEPT>
RINGTUNE_TARGET void scale_shift_backward_of(Rows rows, const Element *x, const float *scale, const float *shift,
                                             const Element *gradient, Slopes slopes, Kept<Element> kept, Element *result) {
    for (int64_t row = 0; row < rows.count; ++row) {
        for (int64_t c = 0; c < rows.channels; c += LANES) {
            const Lanes lanes = lanes_before(c, rows.channels);
            const int64_t place = row * rows.channels + c;
            const Vector value = load(lanes, x + place), factor = load(lanes, scale + c);
            const Vector input = times_plus(value, factor, load(lanes, shift + c));
            const Vector g = through_activation<SILU>(load(lanes, gradient + row * rows.all + c), input);
            Vector rest = times_plus(value, load(lanes, slopes.slope + c), load(lanes, slopes.offset + c));
            if constexpr (KEPT) {
                rest = plus(rest, load(lanes, kept.data + row * kept.stride + c));
            }
            store(lanes, result + place, times_plus(g, factor, rest));
        }
    }
}

// The normal distribution's probability below x, and its density at x.
struct Normal {
    Vector below, density;
};

// Abramowitz & Stegun 7.1.26: absolute error of erf below 1.5e-7, no cancellation in the left tail.
RINGTUNE_TARGET inline Normal normal(Vector x) {
    const Vector one = all(1.0f), half = all(0.5f);
    const Vector size = times(size_of(x), all(0.70710678f));
    const Vector t = reciprocal(times_plus(size, all(0.3275911f), one));
    Vector p = all(1.061405429f);
    p = times_plus(p, t, all(-1.453152027f));
    p = times_plus(p, t, all(1.421413741f));
    p = times_plus(p, t, all(-0.284496736f));
    p = times_plus(p, t, all(0.254829592f));
    // exp(-x² / 2)
    const Vector bell = exp2_of(times(times(x, x), all(-0.5f * LOG2_E)));
    const Vector tail = times(times(half, times(p, t)), bell);
    return {mirrored(x, tail), times(bell, all(0.39894228f))};
}

} // namespace

void scale_shift(Rows rows, bool silu, const Element *x, const float *scale, const float *shift, Element *y) {
    (silu ? scale_shift_of<true> : scale_shift_of<false>)(rows, x, scale, shift, y);
}

void gradient_moments(Rows rows, bool silu, const Element *x, const float *scale, const float *shift,
                      const Element *gradient, float *sums, float *products) {
    (silu ? gradient_moments_of<true> : gradient_moments_of<false>)(rows, x, scale, shift, gradient, sums,
                                                                    products);
}

void scale_shift_backward(Rows rows, bool silu, const Element *x, const float *scale, const float *shift,
                          const Element *gradient, Slopes slopes, Kept<Element> kept, Element *result) {
    const auto with_kept = silu ? scale_shift_backward_of<true, true> : scale_shift_backward_of<false, true>;
    const auto without = silu ? scale_shift_backward_of<true, false> : scale_shift_backward_of<false, false>;
    (kept.data == nullptr ? without : with_kept)(rows, x, scale, shift, gradient, slopes, kept, result);
}

RINGTUNE_TARGET void geglu(int64_t rows, int64_t width, const Element *x, Element *y) {
    for (int64_t row = 0; row < rows; ++row) {
        const Element *values = x + row * 2 * width, *gates = values + width;
        for (int64_t i = 0; i < width; i += LANES) {
            const Lanes lanes = lanes_before(i, width);
            const Vector gate = load(lanes, gates + i);
            const Vector activated = times(gate, normal(gate).below);
            store(lanes, y + row * width + i, times(load(lanes, values + i), activated));
        }
    }
}

RINGTUNE_TARGET void geglu_backward(int64_t rows, int64_t width, const Element *x, const Element *gradient, Element *result) {
    for (int64_t row = 0; row < rows; ++row) {
        const Element *values = x + row * 2 * width, *gates = values + width;
        Element *to_values = result + row * 2 * width, *to_gates = to_values + width;
        for (int64_t i = 0; i < width; i += LANES) {
            const Lanes lanes = lanes_before(i, width);
            const Vector gate = load(lanes, gates + i), g = load(lanes, gradient + row * width + i);
            const Normal at = normal(gate);
            store(lanes, to_values + i, times(g, times(gate, at.below)));
            const Vector slope = times_plus(gate, at.density, at.below);
            store(lanes, to_gates + i, times(times(g, load(lanes, values + i)), slope));
        }
    }
}
