// libtorch's tensors, and what oneDNN works in, from blocks.h.
#include "shim.h"

#include "blocks.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

namespace ringtune {

namespace {

class KeepingAllocator final : public c10::Allocator {
  public:
    c10::DataPtr allocate(size_t bytes) override {
        if (bytes < blocks::SMALLEST) {
            void *memory = c10::alloc_cpu(bytes);
            return {memory, memory, &c10::free_cpu, at::kCPU};
        }
        void *memory = blocks::take(bytes);
        TORCH_CHECK(memory != nullptr, "out of memory: ", bytes, " bytes more are not to be had");
        return {memory, memory, &give_back, at::kCPU};
    }

    // Must free what either branch above returned.
    c10::DeleterFnPtr raw_deleter() const override { return &give_back; }

    void copy_data(void *target, const void *source, size_t bytes) const override {
        default_copy_data(target, source, bytes);
    }

  private:
    static void give_back(void *memory) {
        if (memory != nullptr && !blocks::give_back(memory)) {
            c10::free_cpu(memory);
        }
    }
};

} // namespace

} // namespace ringtune

extern "C" {

bool ringtune_install_allocator() {
    return ringtune::guarded(false, [] {
        // Never destroyed: tensors may outlive static objects.
        static auto *const instance = new ringtune::KeepingAllocator();
        c10::SetCPUAllocator(instance, 1);
        return true;
    });
}

bool ringtune_release_memory() {
    return ringtune::guarded(false, [] {
        ringtune::blocks::release();
        return true;
    });
}

bool ringtune_trim_memory() {
    return ringtune::guarded(false, [] {
        ringtune::blocks::trim();
        return true;
    });
}

bool ringtune_reserve_memory(size_t bytes) {
    return ringtune::guarded(false, [&] {
        ringtune::blocks::reserve(bytes);
        return true;
    });
}

} // extern "C"
