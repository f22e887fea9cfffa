// What products run on, with libtorch's threads.
#pragma once

#include "attention_kernels.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>

namespace ringtune::flash {

// Whoever is done takes half of its share of what is left: where something else runs on a core, its thread does less, and
// nobody waits for it for longer than a task takes. Who does a task moves no bit.
inline void on_threads(int64_t tasks, const std::function<void(int64_t, int64_t)> &body) {
    const int64_t threads = at::get_num_threads();
    std::atomic<int64_t> next{0};
    at::parallel_for(0, std::min(threads, tasks), 1, [&](int64_t, int64_t) {
        int64_t first = next.load(std::memory_order_relaxed);
        while (first < tasks) {
            const int64_t count = std::max<int64_t>((tasks - first) / (2 * threads), 1);
            if (next.compare_exchange_weak(first, first + count, std::memory_order_relaxed)) {
                body(first, first + count);
                first = next.load(std::memory_order_relaxed);
            }
        }
    });
}

inline Backend amx_backend() {
    TORCH_CHECK(amx_supported(), "this processor, or its system, has no AMX");
    return {gemm_amx, AMX_ROWS, AMX_DEPTH, acquire_amx, release_amx, on_threads};
}

inline Backend vector_backend() {
    const auto nothing = []() noexcept {};
    return {gemm_avx512, 1, 2, nothing, nothing, on_threads};
}

} // namespace ringtune::flash
