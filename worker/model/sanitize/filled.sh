#!/usr/bin/env bash
# The model's tests in memory that never was zero by chance: see filled_memory.c. Each test is a process of its own, so that
# no other one has written what it gets.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$here/../../.."
target="${CARGO_TARGET_DIR:-$root/target}"
mkdir -p "$target/sanitize"
library="$(cd "$target/sanitize" && pwd)/filled_memory.so"
"${CC:-cc}" -O2 -Wall -Wextra -shared -fPIC "$here/filled_memory.c" -o "$library"

# All of them first: only the tests are to have such memory, not what compiles them.
cd "$root"
cargo="${CARGO:-cargo}"
"$cargo" nextest run --release --workspace --no-run
# Those that measure how much memory is in use count what is filled.
LD_PRELOAD="$library" "$cargo" nextest run --release --workspace --profile crates \
    -E 'package(ringtune-model) and not (binary(steady_memory) or binary(fuzz))'
