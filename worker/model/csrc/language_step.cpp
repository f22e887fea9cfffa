// The same for what a step does with all gradients and parameters: language.cpp has the checks.
#include "language_kernels.h"
#include "language_shim.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace ringtune::training {

namespace {

void squares(const Tensor &x, double *parts) {
    check_floats("x", x);
    RINGTUNE_RECORD("squares", x);
    in_parts(x.numel(), PART, [&](int64_t first, int64_t count) {
        parts[first / PART] = ringtune::language::squares(count, floats(x) + first);
    });
}

// Makes zeros of what nobody needs, and gives its memory back to the system: a page that is not touched again costs nothing.
void forget(const Tensor &x) {
    check_floats("x", x);
    static const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
    char *const start = reinterpret_cast<char *>(floats(x));
    char *const end = start + x.nbytes();
    char *const first = reinterpret_cast<char *>((uintptr_t(start) + page - 1) / page * page);
    char *const last = reinterpret_cast<char *>(uintptr_t(end) / page * page);
    // Private memory of no file comes back as zeros; where the system will not have it, zeros are written.
    if (first < last && madvise(first, size_t(last - first), MADV_DONTNEED) == 0) {
        std::memset(start, 0, size_t(first - start));
        std::memset(last, 0, size_t(end - last));
    } else {
        std::memset(start, 0, size_t(end - start));
    }
}

bool finite(const Tensor &x) {
    check_floats("x", x);
    RINGTUNE_RECORD("finite", x);
    return all_finite(x.numel(), PART, [&](int64_t first, int64_t count) {
        return ringtune::language::finite(count, floats(x) + first);
    });
}

struct AdamWTensors {
    Tensor parameter, mean, square, low;
};

void adamw(const Tensor &gradient, const double *numbers_of_step, const AdamWTensors &moved) {
    check_floats("gradient", gradient);
    for (const Tensor &each : {moved.parameter, moved.mean, moved.square}) {
        check_floats("what a step moves", each);
        TORCH_CHECK(each.numel() == gradient.numel(), "what a step moves is of ", each.sizes(), ", its gradient of ",
                    gradient.sizes());
    }
    if (moved.low.defined()) {
        check_kind("a parameter's copy", moved.low, at::kBFloat16);
        TORCH_CHECK(moved.low.numel() == gradient.numel(), "a parameter's copy is of ", moved.low.sizes());
    }
    RINGTUNE_RECORD("adamw", gradient, moved.parameter);
    float values[8];
    std::copy(numbers_of_step, numbers_of_step + 8, values);
    const ringtune::language::AdamW step{values[0], values[1], values[2], values[3],
                                         values[4], values[5], values[6], values[7]};
    in_parts(gradient.numel(), PART, [&](int64_t first, int64_t count) {
        Bf16 *low = moved.low.defined() ? numbers<Bf16>(moved.low) + first : nullptr;
        ringtune::language::adamw(
            count, step, floats(gradient) + first,
            {floats(moved.parameter) + first, floats(moved.mean) + first, floats(moved.square) + first, low});
    });
}

} // namespace

} // namespace ringtune::training

extern "C" {

int64_t ringtune_language_part() { return ringtune::training::PART; }

bool ringtune_language_squares(const at::Tensor *x, double *parts) {
    return ringtune::guarded(false, [&] { return ringtune::training::squares(*x, parts), true; });
}

bool ringtune_language_forget(at::Tensor *x) {
    return ringtune::guarded(false, [&] { return ringtune::training::forget(*x), true; });
}

int ringtune_language_finite(const at::Tensor *x) {
    return ringtune::guarded(-1, [&] { return int(ringtune::training::finite(*x)); });
}

bool ringtune_language_adamw(const at::Tensor *gradient, const double *numbers, at::Tensor *parameter, at::Tensor *mean,
                             at::Tensor *square, at::Tensor *low) {
    return ringtune::guarded(false, [&] {
        return ringtune::training::adamw(*gradient, numbers,
                                         {*parameter, *mean, *square, ringtune::training::or_none(low)}),
               true;
    });
}

} // extern "C"
