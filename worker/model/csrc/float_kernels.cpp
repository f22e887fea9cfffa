// The kernels of float_layers.h, and those of fused_kernels.h for fp32, for each width.
#include "float_kernels.h"
#include "fused_kernels.h"
#include "lanes_sixteen.h"
#include "task_cuts.h"

#include <atomic>
#include <cmath>

namespace ringtune {

#define RINGTUNE_TARGET RINGTUNE_AVX2

namespace floats {
namespace {
namespace eight {
using namespace ringtune::eight;
#include "float_layers_body.h"
} // namespace eight
} // namespace
} // namespace floats

namespace fused {
namespace {
namespace eight {
using namespace ringtune::eight;
#include "float_fused_body.h"
} // namespace eight
} // namespace
} // namespace fused

#undef RINGTUNE_TARGET
#define RINGTUNE_TARGET RINGTUNE_WIDE

namespace floats {
namespace {
namespace sixteen {
using namespace ringtune::sixteen;
#include "float_layers_body.h"
} // namespace sixteen
} // namespace
} // namespace floats

namespace fused {
namespace {
namespace sixteen {
using namespace ringtune::sixteen;
#include "float_fused_body.h"
} // namespace sixteen
} // namespace
} // namespace fused

// What the widest that is allowed here says.
#define RINGTUNE_CHOSEN(name, ...) (flash::wide() ? sixteen::name(__VA_ARGS__) : eight::name(__VA_ARGS__))

namespace floats {

namespace {

std::atomic<unsigned> with_avx512{FASTER_WITH_AVX512};

} // namespace

bool used(Family family) {
    return flash::wide() ? (with_avx512.load(std::memory_order_relaxed) & static_cast<unsigned>(family)) != 0
                         : instructions::has(instructions::Set::Avx2);
}

void use_with_avx512(unsigned families) { with_avx512.store(families, std::memory_order_relaxed); }

bool fits(int64_t inputs, int64_t outputs) {
    const int64_t strip = flash::wide() ? sixteen::STRIP : eight::STRIP;
    return inputs > 0 && outputs > 0 && inputs % strip == 0 && outputs % strip == 0;
}

void multiply(const Runner &runner, const Channels &channels, Way way, int64_t rows, const Operands &operands) {
    RINGTUNE_CHOSEN(rows::multiply, runner, channels, way, rows, operands);
}

void convolve(const Runner &runner, const Channels &channels, Way way, const Pictures &pictures, const Operands &operands) {
    RINGTUNE_CHOSEN(winograd::convolve, runner, channels, way, pictures, operands);
}

void attend(const flash::Shape &shape, const Runner &runner, View<const float> query, View<const float> key,
            View<const float> value, View<float> output, float *log_sum_exp) {
    RINGTUNE_CHOSEN(attention::attend, shape, runner, query, key, value, output, log_sum_exp);
}

void attend_back(const flash::Shape &shape, const Runner &runner, const Attended &attended, const Gradients &gradients) {
    RINGTUNE_CHOSEN(attention::attend_back, shape, runner, attended, gradients);
}

} // namespace floats

namespace fused {

void channel_moments(Rows rows, const float *x, double *sums, double *squares) {
    RINGTUNE_CHOSEN(channel_moments, rows, x, sums, squares);
}

void scale_shift(Rows rows, bool silu, const float *x, const float *scale, const float *shift, float *y) {
    RINGTUNE_CHOSEN(scale_shift, rows, silu, x, scale, shift, y);
}

void gradient_moments(Rows rows, bool silu, const float *x, const float *scale, const float *shift,
                      const float *gradient, float *sums, float *products) {
    RINGTUNE_CHOSEN(gradient_moments, rows, silu, x, scale, shift, gradient, sums, products);
}

void scale_shift_backward(Rows rows, bool silu, const float *x, const float *scale, const float *shift,
                          const float *gradient, Slopes slopes, Kept<float> kept, float *result) {
    RINGTUNE_CHOSEN(scale_shift_backward, rows, silu, x, scale, shift, gradient, slopes, kept, result);
}

void layer_norm(int64_t rows, int64_t width, Affine affine, float epsilon, const float *x, float *y,
                float *statistics) {
    RINGTUNE_CHOSEN(layer_norm, rows, width, affine, epsilon, x, y, statistics);
}

void layer_norm_backward(int64_t rows, int64_t width, const float *weight, const float *x, const float *statistics,
                         const float *gradient, const float *kept, float *result) {
    RINGTUNE_CHOSEN(layer_norm_backward, rows, width, weight, x, statistics, gradient, kept, result);
}

void geglu(int64_t rows, int64_t width, const float *x, float *y) { RINGTUNE_CHOSEN(geglu, rows, width, x, y); }

void geglu_backward(int64_t rows, int64_t width, const float *x, const float *gradient, float *result) {
    RINGTUNE_CHOSEN(geglu_backward, rows, width, x, gradient, result);
}

} // namespace fused

} // namespace ringtune
