#!/usr/bin/env bash
# Checks that this machine can build Ringtune, then installs libtorch (install-libtorch.sh).
#
# What is missing is named with the Debian package that has it; nothing of the system is changed.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
readonly RUST_NEEDED=1.95

problems=()
packages=()
need() { # command, what for, Debian package
    command -v "$1" >/dev/null && return
    problems+=("'$1' is missing ($2)")
    packages+=("$3")
}

need "${CC:-cc}" "compiles SQLite and links the programs" build-essential
need "${CXX:-c++}" "compiles the calls into libtorch" build-essential
need python3 "unpacks libtorch; runs the reference implementation in the tests" python3
need flock "keeps two installations apart" util-linux
if command -v python3 >/dev/null; then
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        problems+=("$(python3 --version) is too old: 3.11 or later is needed")
    python3 -m pip --version >/dev/null 2>&1 || { problems+=("python3 has no pip"); packages+=(python3-pip); }
    python3 -c 'import venv, ensurepip' 2>/dev/null || { problems+=("python3 has no venv"); packages+=(python3-venv); }
fi
if ! command -v cargo >/dev/null; then
    problems+=("'cargo' is missing: install Rust from https://rustup.rs")
else
    version="$(cargo --version | cut -d' ' -f2)"
    [[ "$(printf '%s\n%s\n' "$RUST_NEEDED" "$version" | sort -V | head -n 1)" == "$RUST_NEEDED" ]] ||
        problems+=("Rust $version is too old: $RUST_NEEDED or later is needed (rustup update)")
fi

if ((${#problems[@]})); then
    printf 'setup: error: %s\n' "${problems[@]}" >&2
    if ((${#packages[@]})); then
        printf 'setup: on Debian or Ubuntu: sudo apt-get install -y %s\n' \
            "$(printf '%s\n' "${packages[@]}" | sort -u | tr '\n' ' ')" >&2
    fi
    exit 1
fi
exec "$here/install-libtorch.sh"
