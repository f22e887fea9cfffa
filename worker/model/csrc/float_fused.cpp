#include "float_lanes.h"

#include "fused_body.h"
#include "layer_norm_body.h"

namespace ringtune::fused {

namespace {

// Rows that are added up in fp32: a variance is the small rest of two large sums where the mean is far from zero.
constexpr int64_t AT_ONCE = 8;

// `sums`: eight of them.
RINGTUNE_AVX2 inline void add_to(double *sums, Vector more) {
    _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), _mm256_cvtps_pd(_mm256_castps256_ps128(more))));
    _mm256_storeu_pd(sums + 4, _mm256_add_pd(_mm256_loadu_pd(sums + 4), _mm256_cvtps_pd(_mm256_extractf128_ps(more, 1))));
}

} // namespace

RINGTUNE_AVX2 void channel_moments(Rows rows, const float *x, double *sums, double *squares) {
    for (int64_t c = 0; c < rows.channels; c += LANES) {
        const Lanes lanes = lanes_before(c, rows.channels);
        double sum_of_all[LANES] = {}, square_of_all[LANES] = {};
        for (int64_t first = 0; first < rows.count; first += AT_ONCE) {
            Vector sum = zero(), square = zero();
            for (int64_t row = first; row < std::min(first + AT_ONCE, rows.count); ++row) {
                const Vector value = load(lanes, x + row * rows.channels + c);
                sum = plus(sum, value);
                square = times_plus(value, value, square);
            }
            add_to(sum_of_all, sum);
            add_to(square_of_all, square);
        }
        std::copy_n(sum_of_all, lanes.count, sums + c);
        std::copy_n(square_of_all, lanes.count, squares + c);
    }
}

} // namespace ringtune::fused
