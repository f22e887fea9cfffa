// Memory that is kept when it is freed: a training step asks for the same sizes again and again, and fresh memory
// costs a page fault every four kilobytes. Plain C++, no libtorch; any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace ringtune {

namespace blocks {

// What is smaller is malloc's business.
constexpr size_t SMALLEST = size_t(64) << 10;

// A block of `bytes` on a page's boundary, on huge pages where the system gives them; null when there is no memory.
void *take(size_t bytes);

// What the calling thread takes while one of these lives stays for long: it lies apart, so that what comes and goes with
// every step finds no holes between.
class Lasting {
  public:
    Lasting();
    ~Lasting();
    Lasting(const Lasting &) = delete;
    Lasting &operator=(const Lasting &) = delete;

  private:
    const bool before_;
};

// Keeps a block for the next that fits. Returns false when the memory is not one.
bool give_back(void *memory);

// Returns what is kept to the system, but for rests of huge pages.
void release();

// The same, but for as much as is kept anyway while little lives: what has other sizes next finds it.
void trim();

// Has `bytes` cleared by the system and kept for blocks to come; less where that is more than is kept.
void reserve(size_t bytes);

} // namespace blocks

struct FreeBuffer {
    void operator()(void *memory) const {
        if (!blocks::give_back(memory)) {
            std::free(memory);
        }
    }
};
template <typename Element> using Buffer = std::unique_ptr<Element[], FreeBuffer>;

// Uninitialised memory on a cache line's boundary.
template <typename Element> Buffer<Element> allocate(int64_t elements) {
    const size_t bytes = (static_cast<size_t>(elements) * sizeof(Element) + 63) / 64 * 64;
    void *memory = bytes < blocks::SMALLEST ? std::aligned_alloc(64, bytes) : blocks::take(bytes);
    if (memory == nullptr && elements > 0) {
        throw std::bad_alloc();
    }
    return Buffer<Element>(static_cast<Element *>(memory));
}

} // namespace ringtune
