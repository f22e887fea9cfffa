// What packing weights needs beside oneDNN: they are put into the order of dimensions that it takes without a copy of its
// own, by all threads. libtorch's copies of this kind are slow, and some are one thread's.
#include "packing_kernels.h"
#include "shim.h"

#include <ATen/Parallel.h>

#include <utility>

namespace ringtune {

at::Tensor weights_in_order(const at::Tensor &weight, bool turned) {
    TORCH_CHECK((weight.dim() == 2 || weight.dim() == 4) && weight.numel() > 0 && weight.scalar_type() == at::kBFloat16,
                "weights are put in order as bf16 [outputs, inputs] or [outputs, inputs, k, k], not ",
                weight.scalar_type(), " ", weight.sizes());
    const at::Tensor dense = weight.contiguous();
    const int64_t outputs = dense.size(0), inputs = dense.size(1), places = dense.numel() / (outputs * inputs);
    auto shape = dense.sizes().vec();
    if (turned) {
        std::swap(shape[0], shape[1]);
    }
    const auto order = dense.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
    at::Tensor result = at::empty(shape, dense.options().memory_format(order));
    const packing::Plain plain{static_cast<const uint16_t *>(dense.const_data_ptr()), outputs, inputs, places};
    auto *target = static_cast<uint16_t *>(result.mutable_data_ptr());
    const int64_t tasks = turned ? (inputs + packing::TILE - 1) / packing::TILE : outputs;
    at::parallel_for(0, tasks, turned ? 1 : packing::TILE, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
            turned ? packing::exchange(plain, task * packing::TILE, target) : packing::interleave(plain, task, target);
        }
    });
    return result;
}

} // namespace ringtune
