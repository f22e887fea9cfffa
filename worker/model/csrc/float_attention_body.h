// What the forward and the backward pass of attention in fp32 share. Included once for each width.

using flash::Shape;
using Rows = flash::Rows<const float>;

// Tokens of a block.
constexpr int64_t BLOCK = 64;

// Tokens as strips of a right operand, STRIP beside each other: [strips][width][STRIP], with zeros behind the last.
RINGTUNE_TARGET static inline void turn_into_strips(Matrix<const float> tokens, int64_t count, int64_t width, float *strips) {
    for (int64_t token = 0; token < count; token += STRIP) {
        float *strip = strips + token * width;
        if (count - token < STRIP) {
            std::fill_n(strip, width * STRIP, 0.0f);
        }
        turn({tokens.row(token), tokens.stride}, std::min(STRIP, count - token), width, 1.0f, {strip, STRIP});
    }
}

inline Matrix<const float> matrix_of(const Rows &rows, int64_t token) { return {rows.row(token), rows.stride}; }
