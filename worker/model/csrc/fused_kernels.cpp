// The kernels of fused_kernels.h for bf16.
#include "fused_kernels.h"

#include "lanes_sixteen.h"

#include <cmath>

#define RINGTUNE_TARGET RINGTUNE_AVX512

namespace ringtune::fused {

namespace {

using namespace sixteen;
using Element = Bf16;
using flash::LOG2_E;
using sixteen::load;
using sixteen::store;

RINGTUNE_TARGET inline Vector load(Lanes lanes, const Bf16 *place) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, place));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

RINGTUNE_TARGET inline void store(Lanes lanes, Bf16 *place, Vector values) {
    _mm256_mask_storeu_epi16(place, lanes, (__m256i)_mm512_cvtneps_pbh(values));
}

} // namespace

#include "fused_body.h"

#include "layer_norm_body.h"

RINGTUNE_TARGET void channel_moments(Rows rows, const Element *x, float *sums, float *squares) {
    for (int64_t c = 0; c < rows.channels; c += LANES) {
        const Lanes lanes = lanes_before(c, rows.channels);
        Vector sum = zero(), square = zero();
        for (int64_t row = 0; row < rows.count; ++row) {
            const Vector value = load(lanes, x + row * rows.channels + c);
            sum = plus(sum, value);
            square = times_plus(value, value, square);
        }
        store(lanes, sums + c, sum);
        store(lanes, squares + c, square);
    }
}

} // namespace ringtune::fused
