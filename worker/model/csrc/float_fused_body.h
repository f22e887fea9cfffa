// All of fused_kernels.h for fp32, in the words of lanes_sixteen.h and lanes_eight.h. Included once for each.

using Element = float;
using flash::LOG2_E;

#include "fused_body.h"

#include "layer_norm_body.h"

// Rows that are added up in fp32: a variance is the small rest of two large sums where the mean is far from zero.
constexpr int64_t AT_ONCE = 8;

RINGTUNE_TARGET void channel_moments(Rows rows, const float *x, double *sums, double *squares) {
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
        const int64_t count = std::min(LANES, rows.channels - c);
        std::copy_n(sum_of_all, count, sums + c);
        std::copy_n(square_of_all, count, squares + c);
    }
}
