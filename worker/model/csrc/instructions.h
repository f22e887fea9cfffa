// Which instructions our kernels use: the best that this processor has and its system lets a process use, or fewer where
// somebody wants to test or time what lesser machines do. Plain C++, no libtorch.
#pragma once

namespace ringtune::instructions {

// Each has all before it. InstructionSet of worker/engine has the same names and order.
enum class Set : int { Portable, Avx2, Avx512, Avx512Bf16, Amx };

// The best that kernels may use. The first call asks the system for AMX.
Set in_use();

inline bool has(Set set) { return in_use() >= set; }

// From here on kernels use `most` at most: before anything is computed, or between two things that are.
void limit(Set most);

} // namespace ringtune::instructions
