// What kernels for bf16 ask of libtorch's tensors.
#pragma once

#include "attention_kernels.h"
#include "fused_kernels.h"
#include "shim.h"

#include <ATen/Parallel.h>

namespace ringtune {

using fused::Bf16;

// Rows (positions) that are one task, and one part of a sum over rows: fixed, so that the bits do not depend on the
// number of threads.
constexpr int64_t STRETCH = 64;

inline bool fits(const at::Tensor &x) {
    return flash::supported() && x.scalar_type() == at::kBFloat16 && x.device().is_cpu() && x.numel() > 0;
}

inline const Bf16 *bits(const at::Tensor &tensor) { return static_cast<const Bf16 *>(tensor.const_data_ptr()); }
inline Bf16 *mutable_bits(const at::Tensor &tensor) { return static_cast<Bf16 *>(tensor.data_ptr()); }

} // namespace ringtune
