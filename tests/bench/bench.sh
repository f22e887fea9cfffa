#!/usr/bin/env bash
# Our training step beside the one it replaces, taken in turns: see bench.py.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

(cd "$root" && cargo build --release --workspace --example step)
"$python" "$here/bench.py" --checkpoint "$checkpoint" --ours "$root/target/release/examples/step" \
    ${tcmalloc:+--tcmalloc "$tcmalloc"} "$@"
