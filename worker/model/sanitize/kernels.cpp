// The kernels that need no libtorch, under the address and undefined-behaviour sanitizers: shapes that fill no vector, no
// tile and no block, on buffers of exactly their size between pages that nobody may touch, so that one element too many
// is an error. What comes out is compared with plain loops in double precision.
//
// Built and run by run.sh; prints what it covered, and ends with 1 at the first difference. Kernels of several widths are run in each
// that the processor has; without AVX2 it says that it ran nothing and ends with 77.

#include "../csrc/dropout.h"
#include "../csrc/few_rows.h"
#include "../csrc/float_layers.h"
#include "../csrc/instructions.h"
#include "../csrc/language_kernels.h"
#include "../csrc/packing_kernels.h"
#include "../csrc/split_linear.h"
#include "../csrc/text_kernels.h"
#include "../csrc/tiled_product.h"
#include "../csrc/vector_kernels.h"

#include "float_checks.h"
#include "language_checks.h"
#include "norm_checks.h"
#include "support.h"

namespace {

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
using Methods = std::vector<std::pair<const char *, Multiplies>>;

// A layer whose channels fill tiles, in pictures that do not, by each of these methods.
void frozen_layer(Packs pack, const frozen::Layer &layer, const frozen::Pictures &pictures,
                  const Methods &methods) {
    Draw draw;
    const auto [inputs, outputs, side] = layer;
    const int64_t pixels = pictures.batches * pictures.height * pictures.width, places = side * side;
    const auto x = draw.values(pixels * inputs), weights = draw.values(outputs * places * inputs),
               bias = draw.values(outputs), residual = draw.values(pixels * outputs);
    const Exact<Bf16> packed(outputs * places * inputs);
    pack(layer, weights.get(), 0, outputs / frozen::WIDTH, packed.get());
    const auto weight = [&, inputs](int64_t output, int64_t place, int64_t input) {
        return weights[(output * places + place) * inputs + input];
    };
    auto expected = products(pictures, side, inputs, outputs, x, weight);
    for (int64_t at = 0; at < pixels * outputs; ++at) {
        expected[at] += double(to_float(bias[at % outputs])) + to_float(residual[at]);
    }
    for (const auto &[what, multiply] : methods) {
        const Exact<Bf16> result(pixels * outputs);
        multiply(layer, pictures, {x.get(), packed.get(), bias.get(), residual.get(), result.get()});
        compare(what, result, expected, ONCE);
    }
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
                frozen_layer(ringtune::tiled::pack, layer, {batches, height, width}, {{"a layer of whole tiles", multiply}});
            }
        }
    }
    shapes = 0;
    const flash::Backend vectors = backends().front();
    using namespace ringtune::vectors;
    Methods convolutions, products_of_rows;
    for (const int64_t threads : {1, 3, 56}) {
        const auto by = [&](auto method) {
            return [&vectors, threads, method](const auto &...all) { method({vectors, threads}, all...); };
        };
        convolutions.insert(convolutions.end(), {{"a convolution by Winograd's method", by(convolve_by_winograd)},
                                                 {"a direct convolution", by(convolve_directly)}});
        products_of_rows.emplace_back("a product of rows", by(multiply));
    }
    for (const frozen::Pictures &pictures :
         {frozen::Pictures{2, 5, 7}, {1, 1, 1}, {1, 40, 1}, {1, 8, 8}, {3, 9, 6}, {1, 21, 50}, {2, 16, 16}}) {
        for (const frozen::Layer &layer : {frozen::Layer{64, 96, 3}, {32, 32, 3}, {352, 64, 3},
                                           {64, 96, 1}, {32, 32, 1}, {1312, 64, 1}}) {
            const Methods &methods = layer.side == 3 ? convolutions : products_of_rows;
            frozen_layer(pack, layer, pictures, methods);
            shapes += int(methods.size());
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
