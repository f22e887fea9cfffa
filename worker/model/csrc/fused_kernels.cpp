#include "fused_kernels.h"

#include "lanes.h"

namespace ringtune::fused {

namespace {

// Gradient before the activation, given the one behind it and the activation's input.
template <bool SILU> RINGTUNE_AVX512 inline __m512 through_activation(__m512 gradient, __m512 input) {
    if constexpr (!SILU) {
        return gradient;
    }
    const __m512 one = _mm512_set1_ps(1.0f), s = sigmoid(input);
    const __m512 slope = _mm512_mul_ps(s, _mm512_fmadd_ps(input, _mm512_sub_ps(one, s), one));
    return _mm512_mul_ps(gradient, slope);
}

template <bool SILU>
RINGTUNE_AVX512 void scale_shift_of(Rows rows, const Bf16 *x, const float *scale, const float *shift, Bf16 *y) {
    for (int64_t row = 0; row < rows.count; ++row) {
        for (int64_t c = 0; c < rows.channels; c += LANES) {
            const __mmask16 lanes = lanes_before(c, rows.channels);
            __m512 value =
                _mm512_fmadd_ps(load(lanes, x + row * rows.channels + c), _mm512_maskz_loadu_ps(lanes, scale + c),
                                _mm512_maskz_loadu_ps(lanes, shift + c));
            if constexpr (SILU) {
                value = _mm512_mul_ps(value, sigmoid(value));
            }
            store(lanes, y + row * rows.all + c, value);
        }
    }
}

template <bool SILU>
RINGTUNE_AVX512 void gradient_moments_of(Rows rows, const Bf16 *x, const float *scale, const float *shift,
                                         const Bf16 *gradient, float *sums, float *products) {
    for (int64_t c = 0; c < rows.channels; c += LANES) {
        const __mmask16 lanes = lanes_before(c, rows.channels);
        const __m512 factor = _mm512_maskz_loadu_ps(lanes, scale + c);
        const __m512 term = _mm512_maskz_loadu_ps(lanes, shift + c);
        __m512 sum = _mm512_setzero_ps(), product = _mm512_setzero_ps();
        for (int64_t row = 0; row < rows.count; ++row) {
            const __m512 value = load(lanes, x + row * rows.channels + c);
            const __m512 g = through_activation<SILU>(load(lanes, gradient + row * rows.all + c),
                                                      _mm512_fmadd_ps(value, factor, term));
            sum = _mm512_add_ps(sum, g);
            product = _mm512_fmadd_ps(g, value, product);
        }
        _mm512_mask_storeu_ps(sums + c, lanes, sum);
        _mm512_mask_storeu_ps(products + c, lanes, product);
    }
}

template <bool SILU, bool KEPT>
RINGTUNE_AVX512 void scale_shift_backward_of(Rows rows, const Bf16 *x, const float *scale, const float *shift,
                                             const Bf16 *gradient, Slopes slopes, Kept kept, Bf16 *result) {
    for (int64_t row = 0; row < rows.count; ++row) {
        for (int64_t c = 0; c < rows.channels; c += LANES) {
            const __mmask16 lanes = lanes_before(c, rows.channels);
            const int64_t place = row * rows.channels + c;
            const __m512 value = load(lanes, x + place), factor = _mm512_maskz_loadu_ps(lanes, scale + c);
            const __m512 input = _mm512_fmadd_ps(value, factor, _mm512_maskz_loadu_ps(lanes, shift + c));
            const __m512 g = through_activation<SILU>(load(lanes, gradient + row * rows.all + c), input);
            __m512 rest = _mm512_fmadd_ps(value, _mm512_maskz_loadu_ps(lanes, slopes.slope + c),
                                          _mm512_maskz_loadu_ps(lanes, slopes.offset + c));
            if constexpr (KEPT) {
                rest = _mm512_add_ps(rest, load(lanes, kept.data + row * kept.stride + c));
            }
            store(lanes, result + place, _mm512_fmadd_ps(g, factor, rest));
        }
    }
}

// The normal distribution's probability below x, and its density at x.
struct Normal {
    __m512 below, density;
};

// Abramowitz & Stegun 7.1.26: absolute error of erf below 1.5e-7, no cancellation in the left tail.
RINGTUNE_AVX512 inline Normal normal(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f), half = _mm512_set1_ps(0.5f);
    const __m512 size = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.70710678f));
    const __m512 t = reciprocal(_mm512_fmadd_ps(size, _mm512_set1_ps(0.3275911f), one));
    __m512 p = _mm512_set1_ps(1.061405429f);
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592f));
    // exp(-x² / 2)
    const __m512 bell = exp2_of(_mm512_mul_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(-0.5f * LOG2_E)));
    const __m512 tail = _mm512_mul_ps(_mm512_mul_ps(half, _mm512_mul_ps(p, t)), bell);
    const __mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GE_OQ);
    return {_mm512_mask_sub_ps(tail, positive, one, tail), _mm512_mul_ps(bell, _mm512_set1_ps(0.39894228f))};
}

} // namespace

RINGTUNE_AVX512 void channel_moments(Rows rows, const Bf16 *x, float *sums, float *squares) {
    for (int64_t c = 0; c < rows.channels; c += LANES) {
        const __mmask16 lanes = lanes_before(c, rows.channels);
        __m512 sum = _mm512_setzero_ps(), square = _mm512_setzero_ps();
        for (int64_t row = 0; row < rows.count; ++row) {
            const __m512 value = load(lanes, x + row * rows.channels + c);
            sum = _mm512_add_ps(sum, value);
            square = _mm512_fmadd_ps(value, value, square);
        }
        _mm512_mask_storeu_ps(sums + c, lanes, sum);
        _mm512_mask_storeu_ps(squares + c, lanes, square);
    }
}

void scale_shift(Rows rows, bool silu, const Bf16 *x, const float *scale, const float *shift, Bf16 *y) {
    (silu ? scale_shift_of<true> : scale_shift_of<false>)(rows, x, scale, shift, y);
}

void gradient_moments(Rows rows, bool silu, const Bf16 *x, const float *scale, const float *shift,
                      const Bf16 *gradient, float *sums, float *products) {
    (silu ? gradient_moments_of<true> : gradient_moments_of<false>)(rows, x, scale, shift, gradient, sums,
                                                                    products);
}

void scale_shift_backward(Rows rows, bool silu, const Bf16 *x, const float *scale, const float *shift,
                          const Bf16 *gradient, Slopes slopes, Kept kept, Bf16 *result) {
    const auto with_kept = silu ? scale_shift_backward_of<true, true> : scale_shift_backward_of<false, true>;
    const auto without = silu ? scale_shift_backward_of<true, false> : scale_shift_backward_of<false, false>;
    (kept.data == nullptr ? without : with_kept)(rows, x, scale, shift, gradient, slopes, kept, result);
}

RINGTUNE_AVX512 void geglu(int64_t rows, int64_t width, const Bf16 *x, Bf16 *y) {
    for (int64_t row = 0; row < rows; ++row) {
        const Bf16 *values = x + row * 2 * width, *gates = values + width;
        for (int64_t i = 0; i < width; i += LANES) {
            const __mmask16 lanes = lanes_before(i, width);
            const __m512 gate = load(lanes, gates + i);
            const __m512 activated = _mm512_mul_ps(gate, normal(gate).below);
            store(lanes, y + row * width + i, _mm512_mul_ps(load(lanes, values + i), activated));
        }
    }
}

RINGTUNE_AVX512 void geglu_backward(int64_t rows, int64_t width, const Bf16 *x, const Bf16 *gradient, Bf16 *result) {
    for (int64_t row = 0; row < rows; ++row) {
        const Bf16 *values = x + row * 2 * width, *gates = values + width;
        Bf16 *to_values = result + row * 2 * width, *to_gates = to_values + width;
        for (int64_t i = 0; i < width; i += LANES) {
            const __mmask16 lanes = lanes_before(i, width);
            const __m512 gate = load(lanes, gates + i), g = load(lanes, gradient + row * width + i);
            const Normal at = normal(gate);
            store(lanes, to_values + i, _mm512_mul_ps(g, _mm512_mul_ps(gate, at.below)));
            const __m512 slope = _mm512_fmadd_ps(gate, at.density, at.below);
            store(lanes, to_gates + i, _mm512_mul_ps(_mm512_mul_ps(g, load(lanes, values + i)), slope));
        }
    }
}

} // namespace ringtune::fused
