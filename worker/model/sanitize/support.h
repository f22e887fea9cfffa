// What the checks of kernels have in common: memory between forbidden pages, drawn values, plain attention, and comparisons.
#pragma once

#include "../csrc/attention_kernels.h"
#include "../csrc/blocks.h"
#include "../csrc/frozen_layer.h"
#include "../csrc/fused_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>
#include <sys/mman.h>
#include <unistd.h>

// The sanitizer looks at malloc's memory, and not into kept blocks.
namespace ringtune::blocks {

void *take(size_t bytes) { return std::aligned_alloc(64, bytes); }
bool give_back(void *) { return false; }

} // namespace ringtune::blocks

namespace {

using ringtune::flash::Bf16;
namespace flash = ringtune::flash;
namespace fused = ringtune::fused;

// Where what is handed to a kernel lies between two pages that nobody may touch: right before the one, or behind the other.
enum class Flush { End, Start } flush;

// Memory of exactly `count` elements. The sanitizer does not look at masked loads and stores; the processor does.
template <typename Element> class Exact {
  public:
    explicit Exact(int64_t count) : count_(count), bytes_(count * sizeof(Element)) {
        const size_t page = size_t(sysconf(_SC_PAGESIZE));
        const size_t inner = (bytes_ + page - 1) / page * page;
        mapped_ = inner + 2 * page;
        memory_ = static_cast<char *>(mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (memory_ == MAP_FAILED || mprotect(memory_ + page, inner, PROT_READ | PROT_WRITE) != 0) {
            std::perror("no memory for a test");
            std::exit(1);
        }
        // What was not written is not a number.
        std::memset(memory_ + page, 0xff, inner);
        data_ = reinterpret_cast<Element *>(memory_ + page + (flush == Flush::End ? inner - bytes_ : 0));
    }
    ~Exact() {
        if (memory_ != nullptr) {
            munmap(memory_, mapped_);
        }
    }
    Exact(Exact &&other) : count_(other.count_), bytes_(other.bytes_), mapped_(other.mapped_),
                           memory_(std::exchange(other.memory_, nullptr)), data_(other.data_) {}
    Exact(const Exact &) = delete;
    Exact &operator=(const Exact &) = delete;
    Element *get() const { return data_; }
    Element &operator[](int64_t at) const { return data_[at]; }
    int64_t count() const { return count_; }

  private:
    int64_t count_;
    size_t bytes_, mapped_;
    char *memory_;
    Element *data_;
};

float to_float(Bf16 value) {
    const uint32_t bits = uint32_t(value) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}
float to_float(float value) { return value; }
double to_float(double value) { return value; }

Bf16 to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<Bf16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The same values in every run: about normal, mean 0, deviation 1.
class Draw {
  public:
    float next() {
        float sum = -6.0f;
        for (int part = 0; part < 12; ++part) {
            state_ = state_ * 6364136223846793005u + 1442695040888963407u;
            sum += static_cast<float>(state_ >> 40) / static_cast<float>(1 << 24);
        }
        return sum;
    }
    Exact<Bf16> values(int64_t count) {
        Exact<Bf16> all(count);
        for (int64_t at = 0; at < count; ++at) {
            all[at] = to_bf16(next());
        }
        return all;
    }
    Exact<float> floats(int64_t count) {
        Exact<float> all(count);
        for (int64_t at = 0; at < count; ++at) {
            all[at] = next();
        }
        return all;
    }

  private:
    uint64_t state_ = 14;
};

// The distance of `found` from `expected`, in terms of its norm, is at most `allowed`.
template <typename Element>
void compare(const char *what, const Exact<Element> &found, const std::vector<double> &expected, double allowed) {
    double difference = 0.0, norm = 0.0;
    for (int64_t at = 0; at < found.count(); ++at) {
        const double distance = to_float(found[at]) - expected[at];
        difference += distance * distance;
        norm += expected[at] * expected[at];
    }
    // Written so that a NaN is a failure too.
    if (!(std::sqrt(difference) <= allowed * std::sqrt(norm) + 1e-6)) {
        std::printf("%s differs from the plain loop by %.3g of its norm, allowed is %.3g\n", what,
                    std::sqrt(difference / norm), allowed);
        std::exit(1);
    }
}

// What a product or an elementwise kernel may lose by rounding to bf16 once, and attention by rounding P and dS too.
constexpr double ONCE = 0.004;
constexpr double ATTENTION = 0.02;

template <typename Element> Exact<Element> drawn(Draw &draw, int64_t count) {
    if constexpr (std::is_same_v<Element, float>) {
        return draw.floats(count);
    } else {
        return draw.values(count);
    }
}

// What a result of one rounding may lose.
template <typename Element> constexpr double LOST = std::is_same_v<Element, float> ? 1e-5 : ONCE;

// One task a call, so that each gets scratch memory of its own.
void one_by_one(int64_t tasks, const std::function<void(int64_t, int64_t)> &body) {
    for (int64_t task = 0; task < tasks; ++task) {
        body(task, task + 1);
    }
}

struct Sizes {
    int64_t batches, heads, queries, keys, width;
    bool causal = false;
};

template <typename Element> flash::View<Element> view(Element *data, int64_t tokens, const Sizes &sizes) {
    return {data, tokens * sizes.heads * sizes.width, sizes.heads * sizes.width, sizes.width};
}

struct Reference {
    std::vector<double> output, query, key, value, log_sum_exp;
};

// Softmax attention and its gradient, head by head, as the formula says.
template <typename Element>
Reference reference(const Sizes &s, const Exact<Element> &q, const Exact<Element> &k, const Exact<Element> &v,
                    const Exact<Element> &g) {
    const double scale = 1.0 / std::sqrt(double(s.width));
    const auto at = [&](int64_t tokens, int64_t batch, int64_t token, int64_t head, int64_t column) {
        return ((batch * tokens + token) * s.heads + head) * s.width + column;
    };
    const int64_t queries = s.batches * s.queries * s.heads * s.width, keys = s.batches * s.keys * s.heads * s.width;
    Reference r{std::vector<double>(queries), std::vector<double>(queries), std::vector<double>(keys),
                std::vector<double>(keys), {}};
    std::vector<double> p(s.keys), dp(s.keys);
    for (int64_t batch = 0; batch < s.batches; ++batch) {
        for (int64_t head = 0; head < s.heads; ++head) {
            for (int64_t i = 0; i < s.queries; ++i) {
                double sum = 0.0, dot = 0.0;
                const int64_t seen = s.causal ? i + 1 : s.keys;
                for (int64_t j = 0; j < seen; ++j) {
                    double score = 0.0;
                    dp[j] = 0.0;
                    for (int64_t c = 0; c < s.width; ++c) {
                        score += double(to_float(q[at(s.queries, batch, i, head, c)])) *
                                 to_float(k[at(s.keys, batch, j, head, c)]);
                        dp[j] += double(to_float(g[at(s.queries, batch, i, head, c)])) *
                                 to_float(v[at(s.keys, batch, j, head, c)]);
                    }
                    p[j] = std::exp(scale * score);
                    sum += p[j];
                }
                r.log_sum_exp.push_back(std::log2(sum));
                for (int64_t j = 0; j < seen; ++j) {
                    p[j] /= sum;
                    dot += p[j] * dp[j];
                }
                for (int64_t j = 0; j < seen; ++j) {
                    const double ds = scale * p[j] * (dp[j] - dot);
                    for (int64_t c = 0; c < s.width; ++c) {
                        const int64_t of_query = at(s.queries, batch, i, head, c);
                        const int64_t of_key = at(s.keys, batch, j, head, c);
                        r.output[of_query] += p[j] * to_float(v[of_key]);
                        r.query[of_query] += ds * to_float(k[of_key]);
                        r.key[of_key] += ds * to_float(q[of_query]);
                        r.value[of_key] += p[j] * to_float(g[of_query]);
                    }
                }
            }
        }
    }
    return r;
}

// A layer of `side` x `side` places, without bias and residual, by plain loops: `weight(output, place, input)`.
template <typename Element, typename Weight>
std::vector<double> products(const ringtune::frozen::Pictures &pictures, int64_t side, int64_t inputs, int64_t outputs,
                             const Exact<Element> &x, const Weight &weight) {
    const auto [batches, height, width] = pictures;
    const int64_t places = side * side;
    // Outputs lie side by side: the innermost loop's sums do not wait for each other.
    std::vector<double> weights(places * inputs * outputs), expected(batches * height * width * outputs);
    for (size_t at = 0; at < weights.size(); ++at) {
        weights[at] = to_float(weight(at % outputs, at / outputs / inputs, at / outputs % inputs));
    }
    for (int64_t pixel = 0; pixel < batches * height * width; ++pixel) {
        const int64_t row = pixel / width % height, column = pixel % width;
        double *const sums = &expected[pixel * outputs];
        for (int64_t place = 0; place < places; ++place) {
            const int64_t down = place / side - side / 2, across = place % side - side / 2;
            if (row + down < 0 || row + down >= height || column + across < 0 || column + across >= width) {
                continue;
            }
            for (int64_t input = 0; input < inputs; ++input) {
                const double value = to_float(x[(pixel + down * width + across) * inputs + input]);
                const double *const by = &weights[(place * inputs + input) * outputs];
                for (int64_t output = 0; output < outputs; ++output) {
                    sums[output] += value * by[output];
                }
            }
        }
    }
    return expected;
}

} // namespace
