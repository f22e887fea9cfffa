#!/usr/bin/env bash
# Our training step beside the one it replaces, taken in turns: see bench.py.
# Sets up what it needs: the reference environment, the worker's program, a
# full-size SD 1.5 of random weights (4.3 GB in the cache), tcmalloc.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/ringtune"
export TRANSFORMERS_VERBOSITY=error DIFFUSERS_VERBOSITY=error HF_HUB_OFFLINE=1

python="$("$here/../reference/setup.sh" | tail -n 1)"
(cd "$root" && cargo build --release)

checkpoint="$("$here/../reference/full_size.sh" | tail -n 1)"

# For the tuned figure: the system's tcmalloc, or Debian's package unpacked in
# the cache. Without either the figure is taken without it, and says so.
find_tcmalloc() {
    local found
    found="$(ldconfig -p 2>/dev/null | sed -n 's|.*libtcmalloc_minimal\.so\.4 .*=> ||p' | head -n 1)"
    if [[ -z "$found" ]]; then
        found="$(find "$cache/tcmalloc" -name 'libtcmalloc_minimal.so.4' 2>/dev/null | head -n 1 || true)"
    fi
    echo "$found"
}
tcmalloc="$(find_tcmalloc)"
if [[ -z "$tcmalloc" ]] && command -v apt-get dpkg-deb >/dev/null; then
    unpack="$(mktemp -d)"
    trap 'rm -rf "$unpack"' EXIT
    if (cd "$unpack" && apt-get download libtcmalloc-minimal4 >/dev/null 2>&1); then
        dpkg-deb -x "$unpack"/*.deb "$cache/tcmalloc"
        tcmalloc="$(find_tcmalloc)"
    fi
fi

"$python" "$here/bench.py" --checkpoint "$checkpoint" --worker "$root/target/release/ringtune-worker" \
    ${tcmalloc:+--tcmalloc "$tcmalloc"} "$@"
