#!/usr/bin/env bash
# Makes the Python environment of the reference implementation (torch,
# diffusers, transformers, grpcio) in the user's cache, once for each content of
# requirements.txt, and prints the path of its python as the last line.
#
# Safe to run from several processes at once: one builds, the others wait. A
# half-made environment is never used: it gets its name when it is complete.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/ringtune"
python="${PYTHON:-python3}"

command -v "$python" >/dev/null || {
    echo "error: $python is not installed; on Debian or Ubuntu: sudo apt-get install -y python3 python3-venv" >&2
    exit 1
}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "error: $("$python" --version) is too old for the reference environment: 3.11 or later is needed (set PYTHON to choose one)" >&2
    exit 1
}
"$python" -c 'import venv, ensurepip' 2>/dev/null || {
    echo "error: Python's venv module is not complete; on Debian or Ubuntu: sudo apt-get install -y python3-venv" >&2
    exit 1
}

version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
hash="$( (echo "python $version"; cat "$here/requirements.txt") | sha256sum | cut -c1-16)"
folder="$cache/reference-$hash"

if [[ ! -x "$folder/bin/python" ]]; then
    mkdir -p "$cache"
    exec 9>"$cache/reference.lock"
    flock 9
    if [[ ! -x "$folder/bin/python" ]]; then
        echo "installing the reference environment into $folder (about 5 GB, once)" >&2
        partial="$folder.partial"
        rm -rf "$partial"
        "$python" -m venv "$partial" >&2
        # Not compiled: of some 30,000 modules few are ever imported, and those are compiled then, once.
        "$partial/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-compile \
            -r "$here/requirements.txt" >&2
        # libtorch_python links the CUDA libraries, so those have to stay; the
        # GPU compiler is never imported on a CPU.
        "$partial/bin/python" -m pip uninstall --quiet --yes --disable-pip-version-check triton >&2
        env -u PYTHONDONTWRITEBYTECODE "$partial/bin/python" -c 'import torch, diffusers, transformers, grpc_reflection' >&2
        mv "$partial" "$folder"
    fi
    flock -u 9
fi
echo "$folder/bin/python"
