// The free memory is a set of ranges. A block is cut from the smallest range that holds it, and joins the free ranges
// beside it when it is freed, so that what one size leaves serves another. Small blocks, large ones and those that stay
// for long have ranges of their own: one that stays would cut a range in two.
//
// What is kept is bounded: live and kept blocks together stay below SLACK plus the most that was live at once since
// the last release, or below FLOOR, where that is more, as near as whole huge pages allow. When that would be passed, the
// largest ranges go back to the system.
#include "blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ringtune::blocks {

namespace {

constexpr size_t PAGE = size_t(4) << 10;
constexpr size_t HUGE_PAGE = size_t(2) << 20;
constexpr size_t SLACK = size_t(128) << 20;
// A job that packs its weights rises to its most bit by bit. What goes back on the way is wanted again at once: without this,
// 1.3 GB in a first step of Stable Diffusion 1.5, whose pages the system cleared twice.
constexpr size_t FLOOR = size_t(3) << 30;

// Whether the thread's blocks stay for long.
thread_local bool lasting = false;

size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

char *aligned(char *place) {
    return reinterpret_cast<char *>(round_up(reinterpret_cast<uintptr_t>(place), HUGE_PAGE));
}

// Anonymous memory of `bytes`, whole huge pages; null when there is none.
char *map(size_t bytes) {
    const size_t mapped = bytes + HUGE_PAGE;
    void *memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return nullptr;
    }
    // Cut the ends off. The system maps downwards: what lies as high as it can touches what was mapped before.
    char *start = static_cast<char *>(memory), *end = start + mapped, *first = aligned(end - bytes - HUGE_PAGE + 1);
    if (first > start) {
        munmap(start, first - start);
    }
    if (end > first + bytes) {
        munmap(first + bytes, end - (first + bytes));
    }
    madvise(first, bytes, MADV_HUGEPAGE); // a wish: without it the memory works too
    return first;
}

// The free ranges for blocks of some sizes.
class Ranges {
  public:
    // Blocks are multiples of `granule`; at least `least` bytes are mapped at once.
    Ranges(size_t granule, size_t least) : granule_(granule), least_(least) {}

    size_t size_of(size_t bytes) const { return round_up(bytes, granule_); }
    size_t to_map(size_t bytes) const { return round_up(std::max(bytes, least_), HUGE_PAGE); }
    size_t kept() const { return kept_; }

    // A block from the end of the smallest range that holds it, so that the rest joins what is mapped below; null when
    // none does.
    char *cut(size_t bytes) {
        const auto found = by_size_.lower_bound({bytes, nullptr});
        if (found == by_size_.end()) {
            return nullptr;
        }
        const auto [size, place] = *found;
        remove(place, size);
        if (size > bytes) {
            insert(place, size - bytes);
        }
        return place + size - bytes;
    }

    // Adds a range, joined with those that it touches.
    void add(char *place, size_t bytes) {
        auto next = by_place_.lower_bound(place);
        if (next != by_place_.end() && next->first == place + bytes) {
            bytes += next->second;
            remove(next->first, next->second);
            next = by_place_.lower_bound(place);
        }
        if (next != by_place_.begin()) {
            const auto [before, size] = *std::prev(next);
            if (before + size == place) {
                remove(before, size);
                place = before;
                bytes += size;
            }
        }
        insert(place, bytes);
    }

    // Returns the whole huge pages of the largest ranges to the system, until at most `bytes` are kept.
    void drop_until(size_t bytes) {
        auto ranges = std::vector(by_size_.rbegin(), by_size_.rend());
        for (const auto &[size, place] : ranges) {
            char *first = aligned(place), *end = aligned(place + size - HUGE_PAGE + 1);
            if (kept_ <= bytes || size < HUGE_PAGE) {
                return;
            }
            if (first >= end || munmap(first, end - first) != 0) {
                continue;
            }
            remove(place, size);
            if (first > place) {
                insert(place, first - place);
            }
            if (place + size > end) {
                insert(end, place + size - end);
            }
        }
    }

  private:
    void insert(char *place, size_t bytes) {
        by_place_.emplace(place, bytes);
        by_size_.emplace(bytes, place);
        kept_ += bytes;
    }

    void remove(char *place, size_t bytes) {
        by_place_.erase(place);
        by_size_.erase({bytes, place});
        kept_ -= bytes;
    }

    const size_t granule_, least_;
    std::map<char *, size_t> by_place_;
    std::set<std::pair<size_t, char *>> by_size_;
    size_t kept_ = 0;
};

class Blocks {
  public:
    void *take(size_t bytes) {
        const std::lock_guard<std::mutex> lock(mutex_);
        Ranges &ranges = bytes <= LARGEST_SMALL ? small_ : lasting ? lasting_ : large_;
        const size_t size = ranges.size_of(bytes);
        char *memory = ranges.cut(size);
        if (memory == nullptr) {
            memory = grow(ranges, size);
        }
        if (memory != nullptr) {
            live_ += size;
            most_live_ = std::max(most_live_, live_);
            live_blocks_.emplace(memory, Live{size, &ranges});
        }
        return memory;
    }

    bool give_back(void *memory) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = live_blocks_.find(memory);
        if (found == live_blocks_.end()) {
            return false;
        }
        const Live block = found->second;
        live_blocks_.erase(found);
        live_ -= block.size;
        block.ranges->add(static_cast<char *>(memory), block.size);
        return true;
    }

    void release() { keep_until(0); }
    void trim() { keep_until(FLOOR); }

  private:
    struct Live {
        size_t size;
        Ranges *ranges;
    };

    // Of live and kept blocks together.
    void keep_until(size_t bytes) {
        const std::lock_guard<std::mutex> lock(mutex_);
        drop_until(bytes > live_ ? bytes - live_ : 0);
        most_live_ = live_;
    }

    // A block from memory that is mapped for it.
    char *grow(Ranges &ranges, size_t size) {
        const size_t mapped = ranges.to_map(size), most = std::max(std::max(most_live_, live_ + size) + SLACK, FLOOR);
        drop_until(most > live_ + mapped ? most - live_ - mapped : 0);
        char *memory = map(mapped);
        if (memory == nullptr) {
            drop_until(0);
            memory = map(mapped);
        }
        if (memory == nullptr) {
            return nullptr;
        }
        ranges.add(memory, mapped);
        return ranges.cut(size);
    }

    // What stayed for long goes first; then the largest ranges, where most is kept for the fewest page faults to come.
    void drop_until(size_t bytes) {
        for (Ranges *ranges : {&lasting_, &large_, &small_}) {
            const size_t others = small_.kept() + large_.kept() + lasting_.kept() - ranges->kept();
            ranges->drop_until(bytes > others ? bytes - others : 0);
        }
    }

    static constexpr size_t LARGEST_SMALL = size_t(256) << 10;

    std::mutex mutex_;
    std::unordered_map<void *, Live> live_blocks_;
    Ranges small_{PAGE, HUGE_PAGE}, large_{size_t(64) << 10, size_t(16) << 20},
        lasting_{size_t(64) << 10, size_t(16) << 20};
    size_t live_ = 0, most_live_ = 0;
};

// Never destroyed: blocks may outlive static objects.
Blocks &all() {
    static auto *const instance = new Blocks();
    return *instance;
}

} // namespace

Lasting::Lasting() : before_(lasting) { lasting = true; }
Lasting::~Lasting() { lasting = before_; }

void *take(size_t bytes) { return all().take(bytes); }
bool give_back(void *memory) { return all().give_back(memory); }
void release() { all().release(); }
void trim() { all().trim(); }

void reserve(size_t bytes) {
    auto *const memory = static_cast<volatile char *>(take(std::min(bytes, FLOOR)));
    if (memory == nullptr) {
        return;
    }
    for (size_t page = 0; page < std::min(bytes, FLOOR); page += PAGE) {
        memory[page] = 0;
    }
    give_back(const_cast<char *>(memory));
}

} // namespace ringtune::blocks
