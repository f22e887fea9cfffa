// Causal attention in fp32 with dropped probabilities: libtorch's own has none on a processor. Some queries of one head at
// a time, so that no more scores than those are ever in memory.
#include "language_shim.h"

#include "language_kernels.h"

#include <ATen/Parallel.h>

#include <cmath>

namespace ringtune {

namespace {

using at::Tensor;

// Fixed, as it decides in which order the gradients of keys and values are added up.
constexpr int64_t PART_QUERIES = 128;

// One head of one sample; all [tokens, width], by other strides than their own.
struct Head {
    int64_t sample, head;

    Tensor of(const Tensor &tensor) const { return tensor.select(0, sample).select(1, head); }
    Tensor of(const Tensor &together, int64_t which) const { return of(together.select(2, which)); }
};

// Some of a head's queries, which sees the keys before `seen`.
struct QueriesPart {
    int64_t first, count, seen;

    Tensor queries(const Tensor &tensor) const { return tensor.narrow(0, first, count); }
    Tensor keys(const Tensor &tensor) const { return tensor.narrow(0, 0, seen); }
};

// body(head) for all, each on one thread.
template <typename Body> void each_head(const Tensor &together, Body body) {
    const int64_t heads = together.size(3);
    at::parallel_for(0, together.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
        const at::NoGradGuard no_gradient;
        for (int64_t task = begin; task < end; ++task) {
            body(Head{task / heads, task % heads});
        }
    });
}

template <typename Body> void each_part(int64_t tokens, Body body) {
    for (int64_t first = 0; first < tokens; first += PART_QUERIES) {
        const int64_t count = std::min(PART_QUERIES, tokens - first);
        body(QueriesPart{first, count, first + count});
    }
}

// [count, seen]
Tensor factors_of(const ringtune_mask &mask, const Head &head, const QueriesPart &part, int64_t tokens) {
    const Tensor factors = at::empty({part.count, part.seen}, at::kFloat);
    for (int64_t query = 0; query < part.count; ++query) {
        const int64_t row = head.head * tokens + part.first + query;
        dropout::factors(mask, head.sample, row, part.seen, factors.data_ptr<float>() + query * part.seen);
    }
    return factors;
}

float scale_of(const Tensor &together) { return float(1.0 / std::sqrt(double(together.size(4)))); }

// Gives the output, of the kind of `together`, and the logarithms of the sums of exp(scores), [batch, heads, tokens].
std::vector<Tensor> dropped_attention(const Tensor &given, const ringtune_mask &mask) {
    const Tensor together = given.to(at::kFloat);
    const int64_t tokens = together.size(1);
    const Tensor output = at::empty(together.select(2, 0).sizes(), together.options());
    const Tensor log_sums = at::empty({together.size(0), together.size(3), tokens}, together.options());
    each_head(together, [&](const Head &head) {
        const Tensor query = head.of(together, 0), key = head.of(together, 1), value = head.of(together, 2);
        const Tensor result = head.of(output), logs = log_sums.select(0, head.sample).select(0, head.head);
        each_part(tokens, [&](const QueriesPart &part) {
            const Tensor scores = at::mm(part.queries(query), part.keys(key).t()).contiguous();
            const Tensor factors = factors_of(mask, head, part, tokens);
            language::dropped_softmax(part.count, part.seen, part.first, scale_of(together),
                                      factors.const_data_ptr<float>(), scores.data_ptr<float>(),
                                      logs.data_ptr<float>() + part.first);
            part.queries(result).copy_(at::mm(scores, part.keys(value)));
        });
    });
    return {output.to(given.scalar_type()), log_sums};
}

// Gives the gradient of `given`.
Tensor dropped_attention_backward(const Tensor &given, const Tensor &output, const Tensor &log_sums,
                                  const Tensor &slopes, const ringtune_mask &mask) {
    const Tensor together = given.to(at::kFloat), gradient = slopes.to(at::kFloat);
    const int64_t tokens = together.size(1);
    const Tensor dots = (output.to(at::kFloat) * gradient).sum(-1);
    const Tensor result = at::empty(together.sizes(), together.options());
    each_head(together, [&](const Head &head) {
        const Tensor query = head.of(together, 0), key = head.of(together, 1), value = head.of(together, 2);
        const Tensor slope = head.of(gradient), of_query = head.of(result, 0);
        const Tensor dot = head.of(dots).contiguous();
        const float *logs = log_sums.select(0, head.sample).select(0, head.head).const_data_ptr<float>();
        const Tensor of_key = at::zeros_like(key, at::MemoryFormat::Contiguous), of_value = at::zeros_like(of_key);
        each_part(tokens, [&](const QueriesPart &part) {
            const Tensor scores = at::mm(part.queries(query), part.keys(key).t()).contiguous();
            const Tensor of_scores = at::mm(part.queries(slope), part.keys(value).t()).contiguous();
            const Tensor factors = factors_of(mask, head, part, tokens);
            language::dropped_softmax_backward(part.count, part.seen, part.first, scale_of(together),
                                               factors.const_data_ptr<float>(), logs + part.first,
                                               dot.const_data_ptr<float>() + part.first, scores.data_ptr<float>(),
                                               of_scores.data_ptr<float>());
            part.keys(of_value).addmm_(scores.t(), part.queries(slope));
            part.keys(of_key).addmm_(of_scores.t(), part.queries(query));
            part.queries(of_query).copy_(at::mm(of_scores, part.keys(key)));
        });
        head.of(result, 1).copy_(of_key);
        head.of(result, 2).copy_(of_value);
    });
    return result.to(given.scalar_type());
}

} // namespace

} // namespace ringtune
