// The kernels of language_kernels.h, for one set of instructions: see language_lanes.h.

template <typename Element>
void add_and_norm(int64_t rows, int64_t width, const float *x, const Element *added, Affine affine, float epsilon,
                  float *sum, Element *y, float *statistics) {
    for (int64_t row = 0; row < rows; ++row) {
        const float *values = x + row * width;
        // 1. The sum and its mean; the row stays in the cache.
        Floats total{};
        if (added != nullptr) {
            along(width, [&](int64_t at, int64_t count) {
                const Floats value = some(values + at, count) + some(added + row * width + at, count);
                total += value;
                keep(sum + row * width + at, value, count);
            });
            values = sum + row * width;
        } else {
            along(width, [&](int64_t at, int64_t count) { total += some(values + at, count); });
        }
        const float mean = sum_of(total) / float(width);
        // 2. The deviation.
        Floats squared{};
        along(width, [&](int64_t at, int64_t count) {
            const Floats distance = some(values + at, count, mean) - mean;
            squared += distance * distance;
        });
        const float inverse = 1.0f / __builtin_sqrtf(sum_of(squared) / float(width) + epsilon);
        statistics[row * 2] = mean;
        statistics[row * 2 + 1] = inverse;
        // 3. The result.
        along(width, [&](int64_t at, int64_t count) {
            Floats value = (some(values + at, count) - mean) * inverse * some(affine.weight + at, count);
            if (affine.bias != nullptr) {
                value += some(affine.bias + at, count);
            }
            keep(y + row * width + at, value, count);
        });
    }
}

// With g the gradient times the weight and n the normal: (g - mean(g) - n mean(g n)) / deviation.
template <typename Element>
void norm_backward(int64_t rows, int64_t width, const float *x, const float *statistics, const float *weight,
                   const Element *gradient, float *residual, Element *low, float *parts) {
    for (int64_t at = 0; at < 2 * width; ++at) {
        parts[at] = 0.0f;
    }
    for (int64_t row = 0; row < rows; ++row) {
        const float mean = statistics[row * 2], inverse = statistics[row * 2 + 1];
        const float *values = x + row * width;
        const Element *slopes = gradient + row * width;
        Floats sum{}, product{};
        along(width, [&](int64_t at, int64_t count) {
            const Floats slope = some(slopes + at, count);
            const Floats normal = (some(values + at, count) - mean) * inverse;
            keep(parts + at, some(parts + at, count) + slope * normal, count);
            keep(parts + width + at, some(parts + width + at, count) + slope, count);
            // Both are 0 where there is no lane, as the slope is.
            const Floats g = slope * some(weight + at, count);
            sum += g;
            product += g * normal;
        });
        const float of_mean = sum_of(sum) / float(width), of_normal = sum_of(product) / float(width);
        along(width, [&](int64_t at, int64_t count) {
            const Floats g = some(slopes + at, count) * some(weight + at, count);
            const Floats normal = (some(values + at, count) - mean) * inverse;
            const Floats value =
                some(residual + row * width + at, count) + (g - of_mean - normal * of_normal) * inverse;
            keep(residual + row * width + at, value, count);
            if (low != nullptr) {
                keep(low + row * width + at, value, count);
            }
        });
    }
}

constexpr float GELU_SCALE = 1.59576912160573071176f; // 2 sqrt(2 / pi)
constexpr float GELU_CUBE = 0.044715f;

RINGTUNE_INLINE Floats gelu_gate(Floats x) {
    const Floats inner = GELU_SCALE * (x + GELU_CUBE * x * x * x);
    return 1.0f / (1.0f + exp_of(-inner));
}

template <typename Element> void gelu(int64_t count, const Element *x, Element *y) {
    along(count, [&](int64_t at, int64_t some_of) {
        const Floats value = some(x + at, some_of);
        keep(y + at, value * gelu_gate(value), some_of);
    });
}

template <typename Element> void gelu_backward(int64_t count, const Element *x, Element *gradient) {
    along(count, [&](int64_t at, int64_t some_of) {
        const Floats value = some(x + at, some_of), gate = gelu_gate(value);
        const Floats inner_slope = GELU_SCALE * (1.0f + 3.0f * GELU_CUBE * value * value);
        const Floats slope = gate + value * gate * (1.0f - gate) * inner_slope;
        // Far out the gate is closed or open for good, and a slope of infinity times nothing is none.
        const Floats far = all(30.0f), magnitude = value < 0.0f ? -value : value;
        const Floats bounded = magnitude > far ? (value > 0.0f ? all(1.0f) : Floats{}) : slope;
        keep(gradient + at, some(gradient + at, some_of) * bounded, some_of);
    });
}

template <typename Element> void column_sums(int64_t rows, int64_t width, const Element *x, float *sums) {
    along(width, [&](int64_t at, int64_t count) {
        Floats sum{};
        for (int64_t row = 0; row < rows; ++row) {
            sum += some(x + row * width + at, count);
        }
        keep(sums + at, sum, count);
    });
}

void add_up(int64_t width, const float *parts, int64_t count, int64_t distance, bool add, float *target) {
    along(width, [&](int64_t at, int64_t lanes) {
        Floats sum{};
        for (int64_t part = 0; part < count; ++part) {
            sum += some(parts + part * distance + at, lanes);
        }
        keep(target + at, add ? some(target + at, lanes) + sum : sum, lanes);
    });
}

template <typename Element>
void cross_entropy(int64_t rows, int64_t width, Element *logits, const int64_t *targets, float scale, float *powers,
                   float *losses) {
    constexpr float LOWEST = -__builtin_huge_valf();
    for (int64_t row = 0; row < rows; ++row) {
        Element *values = logits + row * width;
        Floats most = all(LOWEST);
        along(width, [&](int64_t at, int64_t count) { most = greater(some(values + at, count, LOWEST), most); });
        const float maximum = greatest_of(most);
        Floats total{};
        along(width, [&](int64_t at, int64_t count) {
            const Floats power = exp_of(some(values + at, count, LOWEST) - maximum);
            total += power;
            if (powers != nullptr) {
                keep(powers + at, power, count);
            }
        });
        const float sum = sum_of(total);
        const float target = load(values + targets[row], 1)[0];
        losses[row] = float(__builtin_log(double(sum)) + double(maximum) - double(target));
        if (powers == nullptr) {
            continue;
        }
        const float factor = scale / sum;
        along(width, [&](int64_t at, int64_t count) {
            Floats slope = some(powers + at, count) * factor;
            if (targets[row] >= at && targets[row] < at + count) {
                slope[targets[row] - at] -= scale;
            }
            keep(values + at, slope, count);
        });
    }
}

template <typename Element> void put(int64_t count, const Element *source, bool add, float *target) {
    along(count, [&](int64_t at, int64_t lanes) {
        const Floats value = some(source + at, lanes);
        keep(target + at, add ? some(target + at, lanes) + value : value, lanes);
    });
}

template <typename Element>
void put_turned(int64_t rows, int64_t width, const Element *source, int64_t stride, bool add, float *target) {
    float turned[LANES][LANES] = {};
    along(width, [&](int64_t at, int64_t columns) {
        for (int64_t row = 0; row < rows; row += LANES) {
            const int64_t count = rows - row < LANES ? rows - row : LANES;
            for (int64_t column = 0; column < columns; ++column) {
                const Floats values = some(source + (at + column) * stride + row, count);
                for (int64_t lane = 0; lane < LANES; ++lane) {
                    turned[lane][column] = values[lane];
                }
            }
            for (int64_t lane = 0; lane < count; ++lane) {
                float *place = target + (row + lane) * width + at;
                const Floats value = load(turned[lane]);
                keep(place, add ? some(place, columns) + value : value, columns);
            }
        }
    });
}

void sum_of_rows(int64_t width, const float *x, const int64_t *rows, int64_t count, bool add, float *target) {
    if (count == 0 && !add) {
        along(width, [&](int64_t at, int64_t lanes) { keep(target + at, Floats{}, lanes); });
    }
    // The target stays in the cache.
    for (int64_t row = 0; row < count; ++row) {
        put(width, x + rows[row] * width, add || row > 0, target);
    }
}

template <typename Element> void multiply(int64_t count, const float *factors, Element *x) {
    along(count, [&](int64_t at, int64_t lanes) {
        keep(x + at, some(x + at, lanes) * some(factors + at, lanes), lanes);
    });
}

void dropped_softmax(int64_t rows, int64_t keys, int64_t first, float scale, const float *factors, float *scores,
                     float *log_sums) {
    constexpr float LOWEST = -__builtin_huge_valf();
    for (int64_t row = 0; row < rows; ++row) {
        float *values = scores + row * keys;
        const float *kept = factors + row * keys;
        const int64_t seen = first + row + 1 < keys ? first + row + 1 : keys;
        Floats most = all(LOWEST), total{};
        along(seen, [&](int64_t at, int64_t count) { most = greater(some(values + at, count, LOWEST) * scale, most); });
        const float maximum = greatest_of(most);
        along(seen, [&](int64_t at, int64_t count) {
            const Floats power = exp_of(some(values + at, count, LOWEST) * scale - maximum);
            total += power;
            keep(values + at, power, count);
        });
        const float sum = sum_of(total), share = 1.0f / sum;
        along(seen, [&](int64_t at, int64_t count) {
            keep(values + at, some(values + at, count) * share * some(kept + at, count), count);
        });
        along(keys - seen, [&](int64_t at, int64_t count) { keep(values + seen + at, Floats{}, count); });
        log_sums[row] = float(__builtin_log(double(sum)) + double(maximum));
    }
}

void dropped_softmax_backward(int64_t rows, int64_t keys, int64_t first, float scale, const float *factors,
                              const float *log_sums, const float *dots, float *scores, float *slopes) {
    for (int64_t row = 0; row < rows; ++row) {
        float *values = scores + row * keys, *gradients = slopes + row * keys;
        const float *kept = factors + row * keys;
        const int64_t seen = first + row + 1 < keys ? first + row + 1 : keys;
        along(seen, [&](int64_t at, int64_t count) {
            const Floats probability = exp_of(some(values + at, count) * scale - log_sums[row]);
            const Floats factor = some(kept + at, count);
            keep(values + at, probability * factor, count);
            keep(gradients + at, probability * (some(gradients + at, count) * factor - dots[row]) * scale, count);
        });
        along(keys - seen, [&](int64_t at, int64_t count) {
            keep(values + seen + at, Floats{}, count);
            keep(gradients + seen + at, Floats{}, count);
        });
    }
}

typedef double Doubles __attribute__((vector_size(128)));

double squares(int64_t count, const float *x) {
    Doubles sum{};
    along(count, [&](int64_t at, int64_t lanes) {
        const Doubles value = __builtin_convertvector(some(x + at, lanes), Doubles);
        sum += value * value;
    });
    double total = 0.0;
    for (int64_t lane = 0; lane < LANES; ++lane) {
        total += sum[lane];
    }
    return total;
}

bool finite(int64_t count, const float *x) {
    Words unbounded{};
    along(count, [&](int64_t at, int64_t lanes) {
        const Words exponent = (Words)some(x + at, lanes) & 0x7f800000;
        unbounded |= (Words)(exponent == 0x7f800000);
    });
    uint32_t any = 0;
    for (int64_t lane = 0; lane < LANES; ++lane) {
        any |= unbounded[lane];
    }
    return any == 0;
}

RINGTUNE_INLINE Floats root_of(Floats x) {
    for (int64_t lane = 0; lane < LANES; ++lane) {
        x[lane] = __builtin_sqrtf(x[lane]);
    }
    return x;
}

void adamw(int64_t count, const AdamW &step, const float *gradient, Moved moved) {
    along(count, [&](int64_t at, int64_t lanes) {
        const Floats slope = some(gradient + at, lanes) * step.factor;
        const Floats old = some(moved.mean + at, lanes);
        const Floats mean = old + (slope - old) * step.new_mean;
        const Floats square = some(moved.square + at, lanes) * step.keep_square + slope * slope * step.new_square;
        const Floats deviation = root_of(square) / step.scale + step.epsilon;
        const Floats value = some(moved.parameter + at, lanes) * step.keep + step.step_size * mean / deviation;
        keep(moved.mean + at, mean, lanes);
        keep(moved.square + at, square, lanes);
        keep(moved.parameter + at, value, lanes);
        if (moved.low != nullptr) {
            keep(moved.low + at, value, lanes);
        }
    });
}
