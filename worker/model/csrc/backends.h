// What products run on, with libtorch's threads.
#pragma once

#include "attention_kernels.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

namespace ringtune::flash {

inline void on_threads(int64_t tasks, const std::function<void(int64_t, int64_t)> &body) {
    at::parallel_for(0, tasks, 1, body);
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
