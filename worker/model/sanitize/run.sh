#!/usr/bin/env bash
# The kernels that need no libtorch under the address and undefined-behaviour sanitizers: see kernels.cpp. First proves
# that one element too many is seen.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
folder="$here/../../../target/sanitize"
mkdir -p "$folder"

# Of the information for debuggers, lines are enough. With -Og most kernels compile faster than with -O1, and run as fast.
plain=("${CXX:-c++}" -std=c++20 -g1 -fno-omit-frame-pointer -fno-math-errno -Wno-psabi -Wall -Wextra)
compile=("${plain[@]}" -Og -fsanitize=address,undefined -fno-sanitize-recover=all)
# Some systems have a compiler without the sanitizers' libraries.
if ! echo 'int main() {}' | "${compile[@]}" -x c++ - -o "$folder/nothing" 2>"$folder/nothing.log"; then
    cat "$folder/nothing.log" >&2
    echo "SKIPPED: ${compile[0]} has no address or undefined-behaviour sanitizer (on Debian: apt-get install g++)" >&2
    [[ "${RINGTUNE_REQUIRE_TOOLS:-}" != 1 ]]
    exit
fi
# The plain loops are not what is looked at: instrumented, they would take most of the time. What they hand to a kernel lies
# between forbidden pages, and the kernels' own memory is instrumented. Their object stands last, because of two copies of
# an inline function the linker takes the first, which must be the instrumented one.
"${plain[@]}" -O3 -march=native -c "$here/kernels.cpp" -o "$folder/checks.o"
# Half of what it takes to compile most kernels is these headers. Precompiled, the intrinsics' own are no system's header to
# the compiler, which warns of what they leave undefined.
compile+=(-Wno-maybe-uninitialized)
printf '#include <%s>\n' algorithm atomic cmath cstring functional immintrin.h limits memory optional vector >"$folder/standard.h"
"${compile[@]}" -x c++-header "$folder/standard.h" -o "$folder/standard.h.gch"
"${compile[@]}" -include "$folder/standard.h" "$here"/../csrc/{attention_{amx,forward,backward,blocks,gemm,tiles,tiles_forward,tiles_backward},direct_convolution,dropout,few_rows,instructions,split_linear,tiled_product,vector_layers,vector_rows,winograd}.cpp \
    "$here"/../csrc/{float,fused,language,text}_kernels.cpp "$folder/checks.o" -o "$folder/kernels"

# Leaks are looked for with ptrace, which is not allowed everywhere.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
status=0
"$folder/kernels" --one-too-many >"$folder/seen.log" 2>&1 || status=$?
if [[ $status == 77 ]]; then
    echo "SKIPPED: $(cat "$folder/seen.log")" >&2
    exit 0
fi
if ! grep -q 'AddressSanitizer' "$folder/seen.log"; then
    cat "$folder/seen.log" >&2
    echo "error: a kernel read one element too many, and nobody noticed" >&2
    exit 1
fi
"$folder/kernels"
echo "no kernel read or wrote beyond its operands' ends, and all agree with plain loops"
