// Pieces that attention's forward and backward pass share: buffers, blocks of tokens in the layouts that
// the matrix product wants, and a few AVX-512 helpers.
#pragma once

#include "attention_kernels.h"
#include "blocks.h"

// GCC warns of the values that its own intrinsics leave open on purpose (bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <cstring>

#define RINGTUNE_AMX __attribute__((target("amx-tile,amx-bf16")))
// Set for each function, not for the file, so that nothing else of this library needs such a processor. Where flash::wide().
#define RINGTUNE_WIDE __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
// Where flash::supported().
#define RINGTUNE_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))

namespace ringtune::flash {

constexpr int64_t LANES = 16;
constexpr float LOG2_E = 1.44269504088896340736f;
// A score whose exponential is zero, and finite, so that no inf - inf arises.
constexpr float LOWEST_SCORE = -1e30f;

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
inline int64_t divide_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// Held by a thread as long as it multiplies: afterwards, after an exception too, the processor's matrix unit is free.
//
// Numbers below 1e-38 are zero meanwhile. Products in bf16 take them for zero anyway, and a vector that has one takes the
// processor hundreds of cycles: attention whose scores lie far apart took up to twelve times as long.
class Multiplying {
  public:
    explicit Multiplying(const Backend &backend) : release_(backend.release), control_(_mm_getcsr()) {
        _mm_setcsr(control_ | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
        backend.acquire();
    }
    ~Multiplying() {
        release_();
        _mm_setcsr(control_);
    }
    Multiplying(const Multiplying &) = delete;
    Multiplying &operator=(const Multiplying &) = delete;

  private:
    void (*release_)() noexcept;
    unsigned control_;
};

// The rows of one batch item and head.
template <typename Element> struct Rows {
    Element *data;
    int64_t stride;

    Element *row(int64_t token) const { return data + token * stride; }
};

template <typename Element> Rows<Element> rows_of(const View<Element> &view, const Shape &shape, int64_t head) {
    return {view.data + head / shape.heads * view.batch_stride + head % shape.heads * view.head_stride,
            view.token_stride};
}

// Tokens [first, first + count) of a sequence of blocks of `block` tokens; what lies past the end is zero.
struct Block {
    int64_t first;
    int64_t count;
    int64_t block;
};

inline Block block_at(int64_t index, int64_t block, int64_t tokens) {
    return {index * block, std::min(block, tokens - index * block), block};
}

// How wide tokens are, and how wide they are packed: with zeros behind.
struct Width {
    int64_t filled;
    int64_t padded;
};

// [block][width]: a left operand, token by token.
void pack_rows(Rows<const Bf16> source, Block block, Width width, Bf16 *packed);
// [width][block]: a left operand, transposed.
void pack_columns(Rows<const Bf16> source, Block block, Width width, Bf16 *packed);
// [width/2][block][2]: a right operand whose product adds up over the width, which is even.
void pack_width_pairs(Rows<const Bf16> source, Block block, Width width, Bf16 *packed);
// [block/2][width rounded up to 16][2]: a right operand whose product adds up over the tokens.
void pack_token_pairs(Rows<const Bf16> source, Block block, int64_t width, Bf16 *packed);

// target[token][column] = bf16(source[column][token] * factor[token]), `source`: [width][block], the block a multiple of
// 16; `factor` may be null (one factor for all, `common`).
void store_transposed(const float *source, int64_t source_stride, const float *factor, float common,
                      Rows<Bf16> target, Block block, int64_t width);

// The sum of the products of two rows.
float dot(const Bf16 *left, const Bf16 *right, int64_t width);
// parts[0] += parts[1] + ..., in this order; `distance`: elements from part to part.
void add_up(float *parts, int64_t elements, int64_t count, int64_t distance);

// 2^f for f in [0, 1) with a relative error below 2e-7: the best polynomial of degree 5 that is exact at 0, highest power first.
constexpr float EXP2[] = {0.001867130137036807f, 0.009017030135627324f, 0.055799913287692515f,
                          0.24016445008077486f,  0.6931513118146004f,   1.0f};

// 2^x with that error: 0 far below, infinity far above, NaN for NaN.
RINGTUNE_WIDE static inline __m512 exp2_of(__m512 x) {
    const __m512 fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 power = _mm512_set1_ps(EXP2[0]);
#pragma GCC unroll 5
    for (int term = 1; term <= 5; ++term) {
        power = _mm512_fmadd_ps(power, fraction, _mm512_set1_ps(EXP2[term]));
    }
    return _mm512_scalef_ps(power, x);
}

// Two rows as bf16, `first` in the lower half.
RINGTUNE_AVX512 static inline __m512i to_bf16(__m512 first, __m512 second) {
    return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

// Sixteen values.
RINGTUNE_AVX512 static inline __m512 widened(const Bf16 *values) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(values));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// The halves of `rows` in turns: the pairs of two rows that a right operand is made of.
RINGTUNE_AVX512 static inline __m512i paired(__m512i rows) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                           6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, rows);
}

// Sixteen rows of sixteen double words: each column becomes a row.
RINGTUNE_WIDE static inline void transpose(__m512i (&rows)[LANES]) {
    __m512i pairs[LANES], fours[LANES];
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 4) {
        fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    // The quarters of `fours` are columns j, 4 + j, 8 + j and 12 + j of four rows.
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
        const __m512i even = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0x88);
        const __m512i odd = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0xdd);
        const __m512i later_even = _mm512_shuffle_i32x4(fours[8 + j], fours[12 + j], 0x88);
        const __m512i later_odd = _mm512_shuffle_i32x4(fours[8 + j], fours[12 + j], 0xdd);
        rows[j] = _mm512_shuffle_i32x4(even, later_even, 0x88);
        rows[4 + j] = _mm512_shuffle_i32x4(odd, later_odd, 0x88);
        rows[8 + j] = _mm512_shuffle_i32x4(even, later_even, 0xdd);
        rows[12 + j] = _mm512_shuffle_i32x4(odd, later_odd, 0xdd);
    }
}

} // namespace ringtune::flash
