#include "lanes.h"

#include "fused_body.h"
#include "layer_norm_body.h"

namespace ringtune::fused {

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
