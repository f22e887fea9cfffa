#include "fused_kernels.h"

#include "lanes.h"

#include <cmath>

namespace ringtune::fused {

RINGTUNE_AVX512 void layer_norm(int64_t rows, int64_t width, Affine affine, float epsilon, const Bf16 *x, Bf16 *y,
                                float *statistics) {
    const float count = static_cast<float>(width);
    for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
        // 1. The mean, and the deviation from it: the row stays in the cache.
        __m512 sum = _mm512_setzero_ps(), square = _mm512_setzero_ps();
        for (int64_t c = 0; c < width; c += LANES) {
            sum = _mm512_add_ps(sum, load(lanes_before(c, width), x + c));
        }
        const float mean = _mm512_reduce_add_ps(sum) / count;
        const __m512 means = _mm512_set1_ps(mean);
        for (int64_t c = 0; c < width; c += LANES) {
            const __mmask16 lanes = lanes_before(c, width);
            const __m512 distance = _mm512_maskz_sub_ps(lanes, load(lanes, x + c), means);
            square = _mm512_fmadd_ps(distance, distance, square);
        }
        const float inverse = 1.0f / std::sqrt(_mm512_reduce_add_ps(square) / count + epsilon);
        statistics[row * 2] = mean;
        statistics[row * 2 + 1] = inverse;
        // 2. The result.
        const __m512 factor = _mm512_set1_ps(inverse);
        for (int64_t c = 0; c < width; c += LANES) {
            const __mmask16 lanes = lanes_before(c, width);
            const __m512 normal = _mm512_mul_ps(_mm512_sub_ps(load(lanes, x + c), means), factor);
            store(lanes, y + c,
                  _mm512_fmadd_ps(normal, _mm512_maskz_loadu_ps(lanes, affine.weight + c),
                                  _mm512_maskz_loadu_ps(lanes, affine.bias + c)));
        }
    }
}

namespace {

// With g the gradient times the weight: (g - mean(g) - xhat * mean(g * xhat)) / deviation.
template <bool KEPT>
RINGTUNE_AVX512 void backward_of(int64_t rows, int64_t width, const float *weight, const Bf16 *x,
                                 const float *statistics, const Bf16 *gradient, const Bf16 *kept, Bf16 *result) {
    const float count = static_cast<float>(width);
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t place = row * width;
        const float inverse = statistics[row * 2 + 1];
        const __m512 means = _mm512_set1_ps(statistics[row * 2]);
        __m512 sum = _mm512_setzero_ps(), product = _mm512_setzero_ps();
        for (int64_t c = 0; c < width; c += LANES) {
            const __mmask16 lanes = lanes_before(c, width);
            const __m512 g =
                _mm512_mul_ps(load(lanes, gradient + place + c), _mm512_maskz_loadu_ps(lanes, weight + c));
            sum = _mm512_add_ps(sum, g);
            // g is 0 where there is no lane.
            product = _mm512_fmadd_ps(g, _mm512_maskz_sub_ps(lanes, load(lanes, x + place + c), means), product);
        }
        const float slope = -_mm512_reduce_add_ps(product) / count * inverse * inverse * inverse;
        const __m512 slopes = _mm512_set1_ps(slope), inverses = _mm512_set1_ps(inverse);
        const __m512 offset = _mm512_set1_ps(-_mm512_reduce_add_ps(sum) / count * inverse);
        for (int64_t c = 0; c < width; c += LANES) {
            const __mmask16 lanes = lanes_before(c, width);
            const __m512 g =
                _mm512_mul_ps(load(lanes, gradient + place + c), _mm512_maskz_loadu_ps(lanes, weight + c));
            __m512 rest = _mm512_fmadd_ps(_mm512_sub_ps(load(lanes, x + place + c), means), slopes, offset);
            if constexpr (KEPT) {
                rest = _mm512_add_ps(rest, load(lanes, kept + place + c));
            }
            store(lanes, result + place + c, _mm512_fmadd_ps(g, inverses, rest));
        }
    }
}

} // namespace

void layer_norm_backward(int64_t rows, int64_t width, const float *weight, const Bf16 *x, const float *statistics,
                         const Bf16 *gradient, const Bf16 *kept, Bf16 *result) {
    (kept == nullptr ? backward_of<false> : backward_of<true>)(rows, width, weight, x, statistics, gradient,
                                                               kept, result);
}

} // namespace ringtune::fused
