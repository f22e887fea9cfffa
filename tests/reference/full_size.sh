#!/usr/bin/env bash
# Makes a Stable Diffusion 1.5 of random weights in its real size, once for each content of its script: 4.3 GB in the
# cache. The last line that it prints is the folder.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/ringtune"
export TRANSFORMERS_VERBOSITY=error DIFFUSERS_VERBOSITY=error HF_HUB_OFFLINE=1

python="$("$here/setup.sh" | tail -n 1)"
hash="$(sha256sum < "$here/make_sd.py" | cut -c1-16)"
checkpoint="$cache/sd15-$hash"
if [[ ! -d "$checkpoint" ]]; then
    exec 7>"$cache/sd15.lock"
    flock 7
    if [[ ! -d "$checkpoint" ]]; then
        echo "making a full-size SD 1.5 of random weights in $checkpoint (once)" >&2
        rm -rf "$checkpoint.partial"
        "$python" "$here/make_sd.py" "$checkpoint.partial" sd15 >&2 7>&-
        mv "$checkpoint.partial" "$checkpoint"
    fi
    flock -u 7
fi
echo "$checkpoint"
