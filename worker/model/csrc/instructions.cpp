#include "instructions.h"

#include <algorithm>
#include <atomic>

#include <sys/syscall.h>
#include <unistd.h>

namespace ringtune::instructions {

namespace {

// Linux gives a process the tiles' 8 KB of state when it asks: Documentation/arch/x86/xstate.rst.
constexpr long ARCH_REQ_XCOMP_PERM = 0x1023;
constexpr long XFEATURE_XTILEDATA = 18;

Set best_here() {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        return Set::Portable;
    }
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
        return Set::Avx2;
    }
    if (!__builtin_cpu_supports("avx512bf16")) {
        return Set::Avx512;
    }
    const bool amx = __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
                     syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
    return amx ? Set::Amx : Set::Avx512Bf16;
}

std::atomic<Set> most_wanted{Set::Amx};

} // namespace

Set in_use() {
    static const Set best = best_here();
    return std::min(best, most_wanted.load(std::memory_order_relaxed));
}

void limit(Set most) { most_wanted.store(most, std::memory_order_relaxed); }

} // namespace ringtune::instructions
