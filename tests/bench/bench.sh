#!/usr/bin/env bash
# Our training step beside the one it replaces, taken in turns: see bench.py.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

(cd "$root" && cargo build --release)
"$python" "$here/bench.py" --checkpoint "$checkpoint" --worker "$root/target/release/ringtune-worker" \
    ${tcmalloc:+--tcmalloc "$tcmalloc"} "$@"
