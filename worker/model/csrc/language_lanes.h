// Sixteen numbers at once, in the compiler's own vectors: every processor adds in the same order. Included once for
// each set of instructions that language_kernels.cpp compiles for, within a namespace of its own; so nothing here
// includes anything, and nothing is a template of the standard library, of which the linker keeps one for all.

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Integers __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Shorts __attribute__((vector_size(32)));

#define RINGTUNE_INLINE static inline __attribute__((always_inline))

RINGTUNE_INLINE Floats all(float value) { return Floats{} + value; }

RINGTUNE_INLINE Floats load(const float *place) {
    Floats values;
    __builtin_memcpy(&values, place, sizeof values);
    return values;
}

RINGTUNE_INLINE Floats load(const Bf16 *place) {
    Shorts bits;
    __builtin_memcpy(&bits, place, sizeof bits);
    return (Floats)(__builtin_convertvector(bits, Words) << 16);
}

// The first `count` of them; `rest` behind.
template <typename Element> RINGTUNE_INLINE Floats load(const Element *place, int64_t count, float rest = 0.0f) {
    Element padded[LANES];
    for (int64_t lane = 0; lane < LANES; ++lane) {
        padded[lane] = lane < count ? place[lane] : Element{};
    }
    Floats values = load(padded);
    for (int64_t lane = count; lane < LANES; ++lane) {
        values[lane] = rest;
    }
    return values;
}

RINGTUNE_INLINE void store(float *place, Floats values) { __builtin_memcpy(place, &values, sizeof values); }

// Rounded to the nearest, to even between two; NaN stays NaN.
RINGTUNE_INLINE void store(Bf16 *place, Floats values) {
    const Words bits = (Words)values;
    const Words rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const Words kept = values != values ? (bits | 0x400000) : rounded;
    const Shorts halves = __builtin_convertvector(kept >> 16, Shorts);
    __builtin_memcpy(place, &halves, sizeof halves);
}

template <typename Element> RINGTUNE_INLINE void store(Element *place, Floats values, int64_t count) {
    Element padded[LANES];
    store(padded, values);
    for (int64_t lane = 0; lane < LANES && lane < count; ++lane) {
        place[lane] = padded[lane];
    }
}

RINGTUNE_INLINE float sum_of(Floats values) {
    for (int64_t half = LANES / 2; half > 0; half /= 2) {
        for (int64_t lane = 0; lane < half; ++lane) {
            values[lane] += values[lane + half];
        }
    }
    return values[0];
}

RINGTUNE_INLINE Floats greater(Floats left, Floats right) { return left > right ? left : right; }

RINGTUNE_INLINE float greatest_of(Floats values) {
    float most = values[0];
    for (int64_t lane = 1; lane < LANES; ++lane) {
        most = values[lane] > most ? values[lane] : most;
    }
    return most;
}

// e^x with a relative error below 2e-7; 0 below -87, what is above 88 as e^88; NaN stays NaN. With n the whole part of
// x / ln 2, e^x = 2^n e^(x - n ln 2), where ln 2 has two parts so that the difference is exact (Cody & Waite 1980), and
// the rest is a Taylor polynomial on at most half of ln 2.
RINGTUNE_INLINE Floats exp_of(Floats x) {
    const Floats low = all(-87.0f), high = all(88.0f);
    const Floats within = x > high ? high : (x < low ? low : x);
    // Adding 1.5 * 2^23 rounds to a whole number, which is then in the lowest bits.
    const Floats magic = all(12582912.0f);
    const Floats shifted = within * all(1.44269504088896340736f) + magic;
    const Floats whole = shifted - magic;
    const Floats rest = (within - whole * all(0.693359375f)) + whole * all(2.12194440e-4f);
    Floats power = all(1.0f / 5040);
    power = power * rest + all(1.0f / 720);
    power = power * rest + all(1.0f / 120);
    power = power * rest + all(1.0f / 24);
    power = power * rest + all(1.0f / 6);
    power = power * rest + all(0.5f);
    power = power * rest + all(1.0f);
    power = power * rest + all(1.0f);
    const Floats two = (Floats)((((Words)shifted - 0x4b400000u) + 127u) << 23);
    const Floats result = power * two;
    return x < low ? Floats{} : result;
}

// Calls body(place, count) for a row's whole vectors and its rest.
template <typename Body> RINGTUNE_INLINE void along(int64_t width, Body body) {
    int64_t place = 0;
    for (; place + LANES <= width; place += LANES) {
        body(place, LANES);
    }
    if (place < width) {
        body(place, width - place);
    }
}

template <typename Element> RINGTUNE_INLINE Floats some(const Element *place, int64_t count, float rest = 0.0f) {
    return count == LANES ? load(place) : load(place, count, rest);
}

template <typename Element> RINGTUNE_INLINE void keep(Element *place, Floats values, int64_t count) {
    count == LANES ? store(place, values) : store(place, values, count);
}
