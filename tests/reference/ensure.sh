#!/usr/bin/env bash
# Prints the folder of golden tensors (see golden.py) as the last line, making it
# when it is missing: about a minute for the reference environment (setup.sh),
# then half a minute for the goldens. Nothing of it is committed, so the
# reference's own bf16 comes from the processor that the tests run on.
#
# Safe to run from several processes at once. A half-made folder is never used:
# it gets its name when it is complete.
set -euo pipefail

# OpenMP threads that spin while they wait take the cores from whatever else runs.
export TRANSFORMERS_VERBOSITY=error DIFFUSERS_VERBOSITY=error HF_HUB_OFFLINE=1 GOMP_SPINCOUNT=0
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/ringtune"

# What the goldens depend on: the scripts, the toy checkpoint's vocabulary, the
# versions, and the processor's instruction sets (for bf16).
hash="$(
    {
        cd "$here"
        cat requirements.txt golden.py goldens/*.py make_sd.py textual_inversion.py
        cat ../fixtures/toy-sd/tokenizer/*
        grep -m1 -E '^(flags|Features)' /proc/cpuinfo || true
    } | sha256sum | cut -c1-16
)"
folder="$cache/golden-$hash"

if [[ ! -f "$folder/manifest.json" ]]; then
    mkdir -p "$cache"
    exec 8>"$cache/golden.lock"
    flock 8
    if [[ ! -f "$folder/manifest.json" ]]; then
        # The children must not hold the lock beyond this script's life.
        python="$("$here/setup.sh" 8>&- | tail -n 1)"
        partial="$folder.partial"
        rm -rf "$partial" "$folder"
        env -u PYTHONDONTWRITEBYTECODE "$python" "$here/golden.py" "$partial" >&2 8>&-
        mv "$partial" "$folder"
    fi
    flock -u 8
fi
echo "$folder"
