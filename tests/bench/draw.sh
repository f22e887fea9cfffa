#!/usr/bin/env bash
# How long we and diffusers' pipeline take for a picture, in turns: see draw.py.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

(cd "$root" && cargo build --release --workspace --example draw)
"$python" "$here/draw.py" --checkpoint "$checkpoint" --ours "$root/target/release/examples/draw" \
    ${tcmalloc:+--tcmalloc "$tcmalloc"} "$@"
