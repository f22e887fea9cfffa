// Philox4x32-10 for eight counters at once, and the lanes of dropout's masks that it makes; see dropout.h.
#pragma once

#include "attention_blocks.h"
#include "dropout.h"

namespace ringtune::dropout {

constexpr uint32_t MULTIPLIERS[2] = {0xd2511f53, 0xcd9e8d57};
// Added to the key after each round: the golden ratio and the square root of 3, less 1, as fractions of 2^32.
constexpr uint32_t WEYL[2] = {0x9e3779b9, 0xbb67ae85};
constexpr int ROUNDS = 10;

// All that the masks of one sample have in common.
struct Drawing {
    uint64_t keys[ROUNDS][2]; // of each round
    uint64_t name[2];         // the counter's second half
    uint32_t least;

    Drawing(const Mask &mask, int64_t sample) : least(mask.least) {
        const uint32_t *words = mask.names[sample];
        for (int round = 0; round < ROUNDS; ++round) {
            for (int half = 0; half < 2; ++half) {
                keys[round][half] = uint32_t(words[half] + uint32_t(round) * WEYL[half]);
            }
        }
        name[0] = words[2];
        name[1] = words[3];
    }
};

// The four words of eight counters, each in the lower half of its counter's 64 bits; the upper halves are anything.
struct Words {
    __m512i word[4];
};

// `block` and `row`: the counters' first half, in lower halves.
RINGTUNE_WIDE static inline Words words_of(const Drawing &drawing, __m512i block, __m512i row) {
    // What was a low product stays whole: a multiplication looks at lower halves alone.
    __m512i first = block, second = row;
    __m512i third = _mm512_set1_epi64(int64_t(drawing.name[0])), fourth = _mm512_set1_epi64(int64_t(drawing.name[1]));
    const __m512i m0 = _mm512_set1_epi64(MULTIPLIERS[0]), m1 = _mm512_set1_epi64(MULTIPLIERS[1]);
    constexpr int XOR = 0x96; // of three
    for (int round = 0; round < ROUNDS; ++round) {
        const __m512i product0 = _mm512_mul_epu32(first, m0), product1 = _mm512_mul_epu32(third, m1);
        const __m512i key0 = _mm512_set1_epi64(int64_t(drawing.keys[round][0]));
        const __m512i key1 = _mm512_set1_epi64(int64_t(drawing.keys[round][1]));
        first = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product1, 32), second, key0, XOR);
        third = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product0, 32), fourth, key1, XOR);
        second = product1;
        fourth = product0;
    }
    return {{first, second, third, fourth}};
}

// The lower halves of `even` and `odd` in turns.
RINGTUNE_WIDE static inline __m512i in_turns(__m512i even, __m512i odd) {
    return _mm512_mask_shuffle_epi32(even, 0xAAAA, odd, _MM_PERM_CCAA);
}

RINGTUNE_WIDE static inline __mmask16 kept_of(__m512i words, uint32_t least) {
    return _mm512_cmpge_epu32_mask(words, _mm512_set1_epi32(int32_t(least)));
}

// What is kept of two times sixteen numbers.
struct Kept {
    __mmask16 first, second;
};

// The counters' words in order: those of the first four, and those of the last four.
RINGTUNE_WIDE static inline Kept kept_in_order(const Drawing &drawing, __m512i block, __m512i row) {
    const Words words = words_of(drawing, block, row);
    const __m512i front = in_turns(words.word[0], words.word[1]), back = in_turns(words.word[2], words.word[3]);
    const __m512i low = _mm512_permutex2var_epi64(front, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), back);
    const __m512i high = _mm512_permutex2var_epi64(front, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), back);
    return {kept_of(low, drawing.least), kept_of(high, drawing.least)};
}

// Of 32 numbers of one row; `at`: a multiple of 4.
RINGTUNE_WIDE static inline Kept kept_along(const Drawing &drawing, int64_t row, int64_t at) {
    const __m512i block = _mm512_add_epi64(_mm512_set1_epi64(at / 4), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
    return kept_in_order(drawing, block, _mm512_set1_epi64(row));
}

// Of 16 numbers of `row`, and of the row behind it.
RINGTUNE_WIDE static inline Kept kept_of_pair(const Drawing &drawing, int64_t row, int64_t at) {
    const __m512i block = _mm512_add_epi64(_mm512_set1_epi64(at / 4), _mm512_setr_epi64(0, 1, 2, 3, 0, 1, 2, 3));
    const __m512i rows = _mm512_add_epi64(_mm512_set1_epi64(row), _mm512_setr_epi64(0, 0, 0, 0, 1, 1, 1, 1));
    return kept_in_order(drawing, block, rows);
}

// Of four numbers of 16 rows, one number after the other.
RINGTUNE_WIDE static inline void kept_down(const Drawing &drawing, int64_t row, int64_t at, __mmask16 (&kept)[4]) {
    const __m512i block = _mm512_set1_epi64(at / 4);
    const __m512i steps = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
    const Words even = words_of(drawing, block, _mm512_add_epi64(_mm512_set1_epi64(row), steps));
    const Words odd = words_of(drawing, block, _mm512_add_epi64(_mm512_set1_epi64(row + 1), steps));
    for (int word = 0; word < 4; ++word) {
        kept[word] = kept_of(in_turns(even.word[word], odd.word[word]), drawing.least);
    }
}

} // namespace ringtune::dropout
