// An allocator for tensors of a megabyte and more that keeps what is freed: a training step asks for the same
// sizes again and again, and fresh memory costs a page fault every four kilobytes. Blocks are aligned to huge
// pages where they are large enough.
//
// What is kept is bounded: live and kept blocks together stay below kSlack plus the most that was live at once
// since the last release. When that would be passed, kept blocks go back to the system, oldest first.
#include "shim.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <sys/mman.h>

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <unordered_map>

namespace ringtune {

namespace {

constexpr size_t kSmallest = size_t(1) << 20; // smaller ones are malloc's business
constexpr size_t kHugePage = size_t(2) << 20;
constexpr size_t kSlack = size_t(256) << 20;

// A size class: at most an eighth more than asked for.
size_t size_class(size_t bytes) {
    size_t step = size_t(64) << 10;
    while (step * 16 <= bytes) {
        step *= 2;
    }
    return (bytes + step - 1) / step * step;
}

// Anonymous memory of `bytes`, aligned to a huge page when it is at least one; null when there is none.
void *map(size_t bytes) {
    const bool huge = bytes >= kHugePage;
    const size_t mapped = huge ? bytes + kHugePage : bytes;
    void *memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return nullptr;
    }
    if (!huge) {
        return memory;
    }
    // Cut the ends off.
    char *start = static_cast<char *>(memory);
    char *aligned = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(start) + kHugePage - 1) & ~(kHugePage - 1));
    if (aligned > start) {
        munmap(start, aligned - start);
    }
    if (start + mapped > aligned + bytes) {
        munmap(aligned + bytes, start + mapped - (aligned + bytes));
    }
    madvise(aligned, bytes, MADV_HUGEPAGE); // a wish: without it the block works too
    return aligned;
}

class KeepingAllocator final : public c10::Allocator {
  public:
    c10::DataPtr allocate(size_t bytes) override {
        if (bytes < kSmallest) {
            void *memory = c10::alloc_cpu(bytes);
            return {memory, memory, &c10::free_cpu, at::kCPU};
        }
        void *memory = take(size_class(bytes));
        return {memory, memory, &give_back, at::kCPU};
    }

    // Must free what either branch above returned.
    c10::DeleterFnPtr raw_deleter() const override { return &give_back; }

    void copy_data(void *target, const void *source, size_t bytes) const override {
        default_copy_data(target, source, bytes);
    }

    // Returns every kept block to the system.
    void release() {
        const std::lock_guard<std::mutex> lock(mutex_);
        drop_until(0);
        most_live_ = live_;
    }

  private:
    struct Kept {
        void *memory;
        size_t bytes;
    };

    void *take(size_t bytes) {
        const std::lock_guard<std::mutex> lock(mutex_);
        void *memory = nullptr;
        if (const auto found = by_size_.find(bytes); found != by_size_.end()) {
            memory = found->second->memory;
            kept_ -= bytes;
            kept_blocks_.erase(found->second);
            by_size_.erase(found);
        } else {
            const size_t most = std::max(most_live_, live_ + bytes);
            const size_t limit = most + kSlack;
            drop_until(limit > live_ + bytes ? limit - live_ - bytes : 0);
            memory = map(bytes);
            if (memory == nullptr) {
                drop_until(0);
                memory = map(bytes);
            }
            TORCH_CHECK(memory != nullptr, "out of memory: ", bytes, " bytes more are not to be had");
        }
        live_ += bytes;
        most_live_ = std::max(most_live_, live_);
        sizes_.emplace(memory, bytes);
        return memory;
    }

    // Returns false when the memory is not one of this allocator's blocks.
    bool keep(void *memory) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto size = sizes_.find(memory);
        if (size == sizes_.end()) {
            return false;
        }
        const size_t bytes = size->second;
        sizes_.erase(size);
        live_ -= bytes;
        kept_ += bytes;
        kept_blocks_.push_back({memory, bytes});
        by_size_.emplace(bytes, std::prev(kept_blocks_.end()));
        return true;
    }

    // Unmaps kept blocks, oldest first, until at most `bytes` are kept.
    void drop_until(size_t bytes) {
        while (kept_ > bytes) {
            const auto oldest = kept_blocks_.begin();
            auto [entry, end] = by_size_.equal_range(oldest->bytes);
            while (entry != end && entry->second != oldest) {
                ++entry;
            }
            by_size_.erase(entry);
            munmap(oldest->memory, oldest->bytes);
            kept_ -= oldest->bytes;
            kept_blocks_.pop_front();
        }
    }

    static void give_back(void *memory);

    std::mutex mutex_;
    std::unordered_map<void *, size_t> sizes_; // live blocks
    std::list<Kept> kept_blocks_;              // oldest first
    std::multimap<size_t, std::list<Kept>::iterator> by_size_;
    size_t live_ = 0, kept_ = 0, most_live_ = 0;
};

// Never destroyed: tensors may outlive static objects.
KeepingAllocator &allocator() {
    static auto *const instance = new KeepingAllocator();
    return *instance;
}

void KeepingAllocator::give_back(void *memory) {
    if (memory != nullptr && !allocator().keep(memory)) {
        c10::free_cpu(memory);
    }
}

} // namespace

} // namespace ringtune

extern "C" {

bool ringtune_install_allocator() {
    return ringtune::guarded(false, [] {
        c10::SetCPUAllocator(&ringtune::allocator(), 1);
        return true;
    });
}

bool ringtune_release_memory() {
    return ringtune::guarded(false, [] {
        ringtune::allocator().release();
        return true;
    });
}

} // extern "C"
