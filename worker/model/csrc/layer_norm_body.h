// Layer norm and its gradient, in the words of lanes_sixteen.h and lanes_eight.h. Included once for
// each kind of Element and width, in a namespace of its own.

RINGTUNE_TARGET void layer_norm(int64_t rows, int64_t width, Affine affine, float epsilon, const Element *x, Element *y,
                                float *statistics) {
    const float count = static_cast<float>(width);
    for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
        // 1. The mean, and the deviation from it: the row stays in the cache.
        Vector sum = zero(), square = zero();
        for (int64_t c = 0; c < width; c += LANES) {
            sum = plus(sum, load(lanes_before(c, width), x + c));
        }
        const float mean = sum_of(sum) / count;
        const Vector means = all(mean);
        for (int64_t c = 0; c < width; c += LANES) {
            const Lanes lanes = lanes_before(c, width);
            const Vector distance = minus(lanes, load(lanes, x + c), means);
            square = times_plus(distance, distance, square);
        }
        const float inverse = 1.0f / std::sqrt(sum_of(square) / count + epsilon);
        statistics[row * 2] = mean;
        statistics[row * 2 + 1] = inverse;
        // 2. The result.
        const Vector factor = all(inverse);
        for (int64_t c = 0; c < width; c += LANES) {
            const Lanes lanes = lanes_before(c, width);
            const Vector normal = times(minus(load(lanes, x + c), means), factor);
            store(lanes, y + c, times_plus(normal, load(lanes, affine.weight + c), load(lanes, affine.bias + c)));
        }
    }
}

namespace {

// With g the gradient times the weight: (g - mean(g) - xhat * mean(g * xhat)) / deviation.
template <bool KEPT>
RINGTUNE_TARGET void backward_of(int64_t rows, int64_t width, const float *weight, const Element *x,
                                 const float *statistics, const Element *gradient, const Element *kept, Element *result) {
    const float count = static_cast<float>(width);
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t place = row * width;
        const float inverse = statistics[row * 2 + 1];
        const Vector means = all(statistics[row * 2]);
        Vector sum = zero(), product = zero();
        for (int64_t c = 0; c < width; c += LANES) {
            const Lanes lanes = lanes_before(c, width);
            const Vector g = times(load(lanes, gradient + place + c), load(lanes, weight + c));
            sum = plus(sum, g);
            // g is 0 where there is no lane.
            product = times_plus(g, minus(lanes, load(lanes, x + place + c), means), product);
        }
        const float slope = -sum_of(product) / count * inverse * inverse * inverse;
        const Vector slopes = all(slope), inverses = all(inverse);
        const Vector offset = all(-sum_of(sum) / count * inverse);
        for (int64_t c = 0; c < width; c += LANES) {
            const Lanes lanes = lanes_before(c, width);
            const Vector g = times(load(lanes, gradient + place + c), load(lanes, weight + c));
            Vector rest = times_plus(minus(load(lanes, x + place + c), means), slopes, offset);
            if constexpr (KEPT) {
                rest = plus(rest, load(lanes, kept + place + c));
            }
            store(lanes, result + place + c, times_plus(g, inverses, rest));
        }
    }
}

} // namespace

void layer_norm_backward(int64_t rows, int64_t width, const float *weight, const Element *x, const float *statistics,
                         const Element *gradient, const Element *kept, Element *result) {
    (kept == nullptr ? backward_of<false> : backward_of<true>)(rows, width, weight, x, statistics, gradient,
                                                               kept, result);
}
