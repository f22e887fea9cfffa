// The kernels that need no libtorch, under the address and undefined-behaviour sanitizers: shapes that fill no vector, no
// tile and no block, on buffers of exactly their size between pages that nobody may touch, so that one element too many
// is an error. What comes out is compared with plain loops in double precision.
//
// Built and run by run.sh; prints what it covered, and ends with 1 at the first difference. Kernels of several widths are run in each
// that the processor has; without AVX2 it says that it ran nothing and ends with 77.

#include "../csrc/attention_kernels.h"
#include "../csrc/blocks.h"
#include "../csrc/dropout.h"
#include "../csrc/few_rows.h"
#include "../csrc/float_layers.h"
#include "../csrc/fused_kernels.h"
#include "../csrc/instructions.h"
#include "../csrc/language_kernels.h"
#include "../csrc/packing_kernels.h"
#include "../csrc/split_linear.h"
#include "../csrc/text_kernels.h"
#include "../csrc/tiled_product.h"
#include "../csrc/vector_kernels.h"

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

// What this processor multiplies with.
std::vector<flash::Backend> backends() {
    const auto nothing = []() noexcept {};
    std::vector<flash::Backend> all{{flash::gemm_avx512, 1, 2, nothing, nothing, one_by_one}};
    if (flash::amx_supported()) {
        all.push_back({flash::gemm_amx, flash::AMX_ROWS, flash::AMX_DEPTH, flash::acquire_amx, flash::release_amx,
                       one_by_one});
    }
    return all;
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

void attention(const flash::Backend &backend, const Sizes &s) {
    Draw draw;
    const int64_t queries = s.batches * s.queries * s.heads * s.width, keys = s.batches * s.keys * s.heads * s.width;
    const auto q = draw.values(queries), k = draw.values(keys), v = draw.values(keys), g = draw.values(queries);
    const Reference expected = reference(s, q, k, v, g);
    const flash::Shape shape{s.batches, s.heads, s.queries, s.keys, s.width, float(1.0 / std::sqrt(double(s.width))), s.causal};
    const Exact<Bf16> output(queries);
    const Exact<float> log_sum_exp(s.batches * s.heads * s.queries);
    const auto in = [&](const Exact<Bf16> &of, int64_t tokens) { return view<const Bf16>(of.get(), tokens, s); };
    flash::forward(shape, backend, in(q, s.queries), in(k, s.keys), in(v, s.keys), view(output.get(), s.queries, s),
                   log_sum_exp.get());
    compare("attention", output, expected.output, ATTENTION);
    compare("attention's log-sum-exp", log_sum_exp, expected.log_sum_exp, ATTENTION);
    // Each gradient alone and all together: which are wanted decides what is packed.
    for (const int wanted : {1, 2, 4, 7}) {
        const Exact<Bf16> dq(queries), dk(keys), dv(keys);
        const auto out = [&](const Exact<Bf16> &of, int64_t tokens, int bit) {
            return (wanted & bit) != 0 ? view(of.get(), tokens, s) : flash::Output{nullptr, 0, 0, 0};
        };
        flash::backward(shape, backend, in(q, s.queries), in(k, s.keys), in(v, s.keys), in(output, s.queries),
                        log_sum_exp.get(), in(g, s.queries),
                        {out(dq, s.queries, 1), out(dk, s.keys, 2), out(dv, s.keys, 4)});
        // With one key the probabilities are 1, and these gradients are rounding alone.
        if (s.keys > 1 && (wanted & 1) != 0) {
            compare("attention's gradient of queries", dq, expected.query, ATTENTION);
        }
        if (s.keys > 1 && (wanted & 2) != 0) {
            compare("attention's gradient of keys", dk, expected.key, ATTENTION);
        }
        if ((wanted & 4) != 0) {
            compare("attention's gradient of values", dv, expected.value, ATTENTION);
        }
    }
}

void product(const flash::Backend &backend, int64_t m, int64_t n, int64_t k, bool accumulate) {
    Draw draw;
    const auto a = draw.values(m * k), b = draw.values(k * n);
    const auto c = draw.floats(m * n);
    std::vector<double> expected(m * n);
    for (int64_t row = 0; row < m; ++row) {
        for (int64_t column = 0; column < n; ++column) {
            double sum = accumulate ? c[row * n + column] : 0.0;
            for (int64_t at = 0; at < k; ++at) {
                sum += double(to_float(a[row * k + at])) * to_float(b[(at / 2 * n + column) * 2 + at % 2]);
            }
            expected[row * n + column] = sum;
        }
    }
    backend.acquire();
    backend.gemm(m, n, k, a.get(), k, b.get(), n, c.get(), n, accumulate);
    backend.release();
    compare("the product", c, expected, 1e-5);
}

// fp32 by bf16 halves, both ways.
void split_product(const flash::Backend &backend, int64_t rows, int64_t inputs, int64_t outputs) {
    Draw draw;
    const auto x = draw.floats(rows * inputs), weight = draw.floats(outputs * inputs), bias = draw.floats(outputs),
               gradient = draw.floats(rows * outputs);
    const Exact<float> result(rows * outputs), back(rows * inputs);
    std::vector<double> of_result(rows * outputs), of_back(rows * inputs);
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t output = 0; output < outputs; ++output) {
            double sum = bias[output];
            for (int64_t input = 0; input < inputs; ++input) {
                sum += double(x[row * inputs + input]) * weight[output * inputs + input];
                of_back[row * inputs + input] += double(gradient[row * outputs + output]) * weight[output * inputs + input];
            }
            of_result[row * outputs + output] = sum;
        }
    }
    const ringtune::split::Sizes sizes{rows, inputs, outputs};
    if (backend.gemm == flash::gemm_amx) {
        ringtune::split::multiply(backend, sizes, x.get(), weight.get(), bias.get(), result.get());
        ringtune::split::multiply_back(backend, sizes, gradient.get(), weight.get(), back.get());
        compare("the product by halves", result, of_result, 2e-5);
        compare("its way back", back, of_back, 2e-5);
    } else {
        ringtune::few_rows::multiply(backend, sizes, x.get(), weight.get(), bias.get(), result.get());
        ringtune::few_rows::multiply_back(backend, sizes, gradient.get(), weight.get(), back.get());
        compare("the product of few rows", result, of_result, 1e-6);
        compare("its way back", back, of_back, 1e-6);
    }
}

namespace frozen = ringtune::frozen;
using Packs = void (*)(const frozen::Layer &layer, const Bf16 *weights, int64_t first, int64_t end, Bf16 *packed);
using Multiplies = std::function<void(const frozen::Layer &, const frozen::Pictures &, const frozen::Operands &)>;

// A layer whose channels fill tiles, in pictures that do not.
void frozen_layer(const char *what, Packs pack, const Multiplies &multiply, const frozen::Layer &layer,
                  const frozen::Pictures &pictures) {
    Draw draw;
    const auto [inputs, outputs, side] = layer;
    const auto [batches, height, width] = pictures;
    const int64_t pixels = batches * height * width, places = side * side;
    const auto x = draw.values(pixels * inputs), weights = draw.values(outputs * places * inputs),
               bias = draw.values(outputs), residual = draw.values(pixels * outputs);
    const Exact<Bf16> packed(outputs * places * inputs), result(pixels * outputs);
    pack(layer, weights.get(), 0, outputs / frozen::WIDTH, packed.get());
    multiply(layer, pictures, {x.get(), packed.get(), bias.get(), residual.get(), result.get()});
    std::vector<double> expected(pixels * outputs);
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {
        const int64_t row = pixel / width % height, column = pixel % width;
        for (int64_t output = 0; output < outputs; ++output) {
            double sum = to_float(bias[output]) + to_float(residual[pixel * outputs + output]);
            for (int64_t place = 0; place < places; ++place) {
                const int64_t down = place / side - side / 2, across = place % side - side / 2;
                if (row + down < 0 || row + down >= height || column + across < 0 || column + across >= width) {
                    continue;
                }
                const Bf16 *from = x.get() + (pixel + down * width + across) * inputs;
                const Bf16 *by = weights.get() + (output * places + place) * inputs;
                for (int64_t input = 0; input < inputs; ++input) {
                    sum += double(to_float(from[input])) * to_float(by[input]);
                }
            }
            expected[pixel * outputs + output] = sum;
        }
    }
    compare(what, result, expected, ONCE);
}

void packing(int64_t outputs, int64_t inputs, int64_t places) {
    namespace packing = ringtune::packing;
    const Exact<Bf16> plain(outputs * inputs * places), interleaved(plain.count()), exchanged(plain.count());
    for (int64_t at = 0; at < plain.count(); ++at) {
        plain[at] = Bf16(at);
    }
    const packing::Plain weights{plain.get(), outputs, inputs, places};
    for (int64_t output = 0; output < outputs; ++output) {
        packing::interleave(weights, output, interleaved.get());
    }
    for (int64_t first = 0; first < inputs; first += packing::TILE) {
        packing::exchange(weights, first, exchanged.get());
    }
    for (int64_t output = 0; output < outputs; ++output) {
        for (int64_t input = 0; input < inputs; ++input) {
            for (int64_t place = 0; place < places; ++place) {
                const Bf16 value = plain[(output * inputs + input) * places + place];
                if (interleaved[(output * places + place) * inputs + input] != value ||
                    exchanged[(input * places + places - 1 - place) * outputs + output] != value) {
                    std::printf("packing %ld x %ld x %ld: another value at %ld, %ld, %ld\n", long(outputs), long(inputs),
                                long(places), long(output), long(input), long(place));
                    std::exit(1);
                }
            }
        }
    }
}

#include "language_checks.h"

#include "float_checks.h"
#include "norm_checks.h"

// Every kernel that needs bf16 instructions at every shape; prints what there was.
void run() {
    int shapes = 0;
    for (const Sizes &sizes : {
             Sizes{1, 1, 1, 1, 1}, Sizes{1, 1, 5, 3, 1}, Sizes{3, 2, 7, 77, 24}, Sizes{1, 2, 200, 200, 24},
             Sizes{3, 1, 97, 129, 40}, Sizes{1, 3, 49, 77, 80}, Sizes{2, 1, 95, 31, 33}, Sizes{1, 1, 192, 257, 64},
             Sizes{1, 1, 1, 1, 3, true}, Sizes{2, 3, 65, 65, 64, true}, Sizes{1, 2, 193, 193, 24, true},
             Sizes{1, 1, 400, 400, 7, true}, Sizes{1, 1, 63, 154, 160}, Sizes{1, 2, 100, 600, 16}, Sizes{1, 1, 500, 65, 8}, Sizes{1, 1, 33, 35, 256},
         }) {
        for (const flash::Backend &backend : backends()) {
            attention(backend, sizes);
        }
        ++shapes;
    }
    std::printf("  attention: %d shapes (head widths 1 to 256, 1 to 600 keys, batches of 1 to 3), every gradient alone, causal too\n",
                shapes);
    shapes = 0;
    for (const flash::Backend &backend : backends()) {
        for (int64_t m = 1; m <= 17; ++m) {
            for (const int64_t n : {16, 32, 48, 80, 96, 112}) {
                for (const int64_t k : {1, 3, 20, 39}) {
                    product(backend, m * backend.rows, n, k * backend.depth, (m + k) % 2 == 0);
                    ++shapes;
                }
            }
        }
    }
    std::printf("  products: %d shapes%s\n", shapes, flash::amx_supported() ? ", on AMX too" : "");
    for (const flash::Backend &backend : backends()) {
        if (backend.gemm != flash::gemm_amx) {
            continue;
        }
        for (const auto &[batches, height, width] :
             {frozen::Pictures{2, 5, 7}, {1, 2, 16}, {1, 1, 1}, {1, 40, 1}}) {
            const auto multiply = [&](const auto &...all) { ringtune::tiled::multiply(backend, all...); };
            for (const frozen::Layer &layer : {frozen::Layer{64, 96, 3}, {352, 352, 1}, {1024, 32, 3}}) {
                frozen_layer("a layer of whole tiles", ringtune::tiled::pack, multiply, layer, {batches, height, width});
            }
        }
    }
    shapes = 0;
    const flash::Backend vectors = backends().front();
    for (const int64_t threads : {1, 3, 56}) {
        const ringtune::vectors::Runner runner{vectors, threads};
        for (const frozen::Pictures &pictures :
             {frozen::Pictures{2, 5, 7}, {1, 1, 1}, {1, 40, 1}, {1, 8, 8}, {3, 9, 6}, {1, 21, 50}, {2, 16, 16}}) {
            for (const frozen::Layer &layer : {frozen::Layer{64, 96, 3}, {32, 32, 3}, {352, 64, 3}}) {
                using namespace ringtune::vectors;
                const auto by = [&](auto method) { return [&runner, method](const auto &...all) { method(runner, all...); }; };
                frozen_layer("a convolution by Winograd's method", pack, by(convolve_by_winograd), layer, pictures);
                frozen_layer("a direct convolution", pack, by(convolve_directly), layer, pictures);
                shapes += 2;
            }
            for (const frozen::Layer &layer : {frozen::Layer{64, 96, 1}, {32, 32, 1}, {1312, 64, 1}}) {
                const auto multiply = [&](const auto &...all) { ringtune::vectors::multiply(runner, all...); };
                frozen_layer("a product of rows", ringtune::vectors::pack, multiply, layer, pictures);
                ++shapes;
            }
        }
    }
    std::printf("  convolutions and layers on vectors: %d shapes (1 to 2100 pixels, for 1 to 56 threads)\n", shapes);
    all_norms<Bf16>("norms and GEGLU", "AVX-512 BF16");
    shapes = 0;
    for (const int64_t outputs : {1, 31, 32, 33, 100}) {
        for (const int64_t inputs : {1, 32, 63, 65}) {
            for (const int64_t places : {1, 4, 9}) {
                packing(outputs, inputs, places);
                ++shapes;
            }
        }
    }
    std::printf("  packing: %d shapes\n", shapes);
}

void split_products() {
    int shapes = 0;
    for (const flash::Backend &backend : backends()) {
        for (const int64_t rows : {1, 16, 77, 170}) {
            for (const int64_t inputs : {1, 31, 65, 130, 300}) {
                for (const int64_t outputs : {1, 33, 64, 515}) {
                    split_product(backend, rows, inputs, outputs);
                    ++shapes;
                }
            }
        }
    }
    std::printf("  products of few rows in fp32: %d shapes\n", shapes);
}

void language_models(const char *with) {
    int shapes = 0;
    for (const int64_t rows : {1, 3, 64}) {
        for (const int64_t width : {1, 2, 15, 16, 17, 33, 48, 211}) {
            language_kernels<float>(rows, width);
            language_kernels<Bf16>(rows, width);
            language_step(rows * width);
            language_rows(rows, width);
            ++shapes;
        }
    }
    std::printf("  language models with %s: %d shapes, in fp32 and bf16\n", with, shapes);
}

} // namespace

int main(int count, char **arguments) {
    using namespace ringtune::instructions;
    const Set here = in_use();
    if (here == Set::Portable) {
        std::puts("this processor has no AVX2: nothing was run");
        return 77;
    }
    // Whether one element too many is seen at all, by a masked load where there is one.
    if (count > 1 && std::strcmp(arguments[1], "--one-too-many") == 0) {
        if (here < Set::Avx512Bf16) {
            limit(Set::Avx2);
            float_layer_beyond();
            return 0;
        }
        const Exact<float> sums(24), squares(24);
        const Exact<Bf16> x(2 * 24 - 1);
        fused::channel_moments({2, 24, 24}, x.get(), sums.get(), squares.get());
        return 0;
    }
    for (const Flush place : {Flush::End, Flush::Start}) {
        flush = place;
        std::printf("operands %s a forbidden page:\n", flush == Flush::End ? "right before" : "right behind");
        if (here >= Set::Avx512Bf16) {
            run();
        } else {
            std::puts("  this processor has no AVX-512 BF16: the kernels that need it were not run");
        }
        if (here >= Set::Avx512) {
            split_products();
        }
        limit(Set::Portable);
        language_models("any processor");
        for (const auto &[set, with] : {std::pair{Set::Avx2, "AVX2"}, {Set::Avx512, "AVX-512"}}) {
            if (here < set) {
                std::printf("  this processor has no %s: what is as wide was not run\n", with);
                continue;
            }
            limit(set);
            float_layers(with);
            all_norms<float>("norms and GEGLU in fp32", with);
            if (set == Set::Avx512) {
                language_models(with);
            }
        }
        limit(Set::Amx);
    }
    return 0;
}
