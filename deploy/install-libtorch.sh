#!/usr/bin/env bash
# Puts a CPU-only libtorch where `cargo build` in this clone finds it.
#
#   deploy/install-libtorch.sh          install if needed, then point this clone at it
#   deploy/install-libtorch.sh --path   print the folder in use, install nothing
#
# The Linux wheel of torch on PyPI is a CUDA build, but its libtorch_cpu.so needs only itself, libc10,
# libgomp and two small CUDA libraries. Those five, the headers and a stub libtorch.so (the real one
# would drag libtorch_cuda in) are a complete CPU libtorch of about 550 MB, in
# ${XDG_CACHE_HOME:-$HOME/.cache}/ringtune. Any number of clones share it.
#
# Set LIBTORCH to use a libtorch 2.13 of your own: then this script changes nothing.
set -euo pipefail

readonly VERSION=2.13.0
readonly NAME="libtorch-${VERSION}-cpu"
# Raise when the folder's contents change for the same libtorch, so that old caches are made again.
readonly LAYOUT=2
readonly DISK_NEEDED_MIB=1700

clone="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
readonly clone
readonly cargo_file="$clone/.cargo/libtorch.toml"

say() { printf 'libtorch: %s\n' "$*" >&2; }
fail() {
    printf 'libtorch: error: %s\n' "$*" >&2
    exit 1
}

# Wheels pinned by content. The torch wheel's Python tag is of no account here: only its C++ half is used.
requirements() {
    cat <<'PINS'
torch==2.13.0 --hash=sha256:60fcdcb2f3876e21146cb4524ef06397d727ca9ad5f020818547e25075fe3cb7
nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
nvidia-cuda-cupti==13.0.85 --hash=sha256:4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8
PINS
}

cache_root() {
    if [[ -n "${XDG_CACHE_HOME:-}" ]]; then
        printf '%s/ringtune\n' "$XDG_CACHE_HOME"
    elif [[ -n "${HOME:-}" ]]; then
        printf '%s/.cache/ringtune\n' "$HOME"
    else
        fail "neither XDG_CACHE_HOME nor HOME is set: there is no cache folder to install into"
    fi
}

check_machine() {
    [[ "$(uname -s)" == Linux && "$(uname -m)" == x86_64 ]] ||
        fail "only Linux on x86_64 has a pinned libtorch, this is $(uname -s) on $(uname -m); set LIBTORCH to a libtorch $VERSION of your own"
    command -v flock >/dev/null || fail "'flock' is missing (Debian: apt install util-linux)"
    command -v "${CC:-cc}" >/dev/null || fail "a C compiler is missing (Debian: apt install build-essential)"
    command -v python3 >/dev/null || fail "'python3' is missing (Debian: apt install python3 python3-pip); it only downloads and unpacks"
    python3 -m pip --version >/dev/null 2>&1 || fail "python3 has no pip (Debian: apt install python3-pip)"
}

check_disk() {
    local free_mib
    free_mib="$(df --output=avail --block-size=1M "$1" | tail -n 1 | tr -d ' ')"
    ((free_mib >= DISK_NEEDED_MIB)) ||
        fail "$1 has $free_mib MiB free, $DISK_NEEDED_MIB MiB are needed while installing (550 MiB stay); set XDG_CACHE_HOME to a larger disk"
}

is_installed() {
    [[ "$(cat "$1/build-version" 2>/dev/null)" == "$VERSION+cpu" && "$(cat "$1/ringtune-layout" 2>/dev/null)" == "$LAYOUT" ]]
}

download() { # into folder $1
    local platform platforms=()
    for platform in manylinux_2_28 manylinux_2_27 manylinux_2_26 manylinux_2_25 manylinux_2_24 manylinux_2_17 manylinux2014; do
        platforms+=(--platform "${platform}_x86_64")
    done
    requirements >"$1/requirements.txt"
    say "downloading torch $VERSION and two CUDA libraries (540 MB)"
    python3 -m pip download --require-hashes --no-deps --disable-pip-version-check --no-cache-dir \
        --python-version 311 --implementation cp --abi cp311 "${platforms[@]}" --only-binary=:all: \
        --dest "$1" --requirement "$1/requirements.txt" >&2 ||
        fail "the download failed, see pip's message above (a wrong checksum means that the file is not the one this project was tested with)"
}

unpack() { # wheels of folder $1 into libtorch folder $2
    say "unpacking"
    python3 - "$1" "$2" <<'PYTHON'
import pathlib, shutil, sys, zipfile

wheels, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
libraries = {
    "torch/lib/libtorch_cpu.so", "torch/lib/libc10.so", "torch/lib/libgomp.so.1",
    "nvidia/cu13/lib/libcudart.so.13", "nvidia/cu13/lib/libcupti.so.13",
}
missing = set(libraries)
for wheel in sorted(wheels.glob("*.whl")):
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            name = entry.filename
            if name in libraries:
                target = out / "lib" / name.rsplit("/", 1)[1]
                missing.discard(name)
            elif name.startswith("torch/include/") and not entry.is_dir():
                target = out / name.removeprefix("torch/")
            elif ".dist-info/licenses/" in name and not entry.is_dir():
                target = out / "licenses" / wheel.name.split("-")[0] / name.split(".dist-info/licenses/", 1)[1]
            else:
                continue
            if ".." in pathlib.PurePosixPath(name).parts:
                sys.exit(f"libtorch: error: {wheel.name} holds a path that leaves its folder: {name}")
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, open(target, "wb") as destination:
                shutil.copyfileobj(source, destination, 1 << 20)
if missing:
    sys.exit(f"libtorch: error: the wheels lack {sorted(missing)}")
PYTHON
}

# torch-sys links `-ltorch`; the wheel's own libtorch.so needs libtorch_cuda.
make_stub() { # libtorch folder $1
    printf 'int ringtune_libtorch_stub;\n' >"$1/stub.c"
    # shellcheck disable=SC2016
    "${CC:-cc}" -shared -fPIC -o "$1/lib/libtorch.so" "$1/stub.c" -Wl,-soname,libtorch.so \
        -Wl,--no-as-needed -L"$1/lib" -ltorch_cpu -lc10 -Wl,-rpath,'$ORIGIN' -Wl,--allow-shlib-undefined ||
        fail "the C compiler could not link a stub libtorch.so"
    rm "$1/stub.c"
}

install() { # into $1, under the lock
    local root="$1" target="$1/$NAME" work
    find "$root" -maxdepth 1 -name "$NAME.partial.*" -exec rm -rf {} + # left by a killed run; the lock is ours
    check_disk "$root"
    work="$(mktemp -d "$root/$NAME.partial.XXXXXX")"
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    mkdir "$work/wheels" "$work/libtorch"
    download "$work/wheels"
    unpack "$work/wheels" "$work/libtorch"
    make_stub "$work/libtorch"
    printf '%s\n' "$LAYOUT" >"$work/libtorch/ringtune-layout"
    printf '%s+cpu\n' "$VERSION" >"$work/libtorch/build-version"
    chmod 755 "$work/libtorch"
    rm -rf "$target"
    mv -T "$work/libtorch" "$target"
    rm -rf "$work"
    trap - EXIT
}

# .cargo/config.toml includes this git-ignored file; a LIBTORCH in the environment still wins.
point_clone_at() {
    local text temporary
    [[ "$1" != *[\"\\]* ]] || fail "the cache folder's path holds a quote or a backslash: $1; set XDG_CACHE_HOME"
    text="$(printf '# Written by deploy/install-libtorch.sh.\n[env]\nLIBTORCH = { value = "%s", force = false, relative = false }' "$1")"
    [[ "$(cat "$cargo_file" 2>/dev/null)" == "$text" ]] && return
    temporary="$(mktemp "$cargo_file.XXXXXX")"
    printf '%s\n' "$text" >"$temporary"
    mv "$temporary" "$cargo_file"
}

main() {
    case "${1:-}" in
        "" | --path) ;;
        -h | --help) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; return ;;
        *) fail "unknown argument '$1' (--path and --help are known)" ;;
    esac
    if [[ -n "${LIBTORCH:-}" ]]; then
        [[ -e "${LIBTORCH_LIB:-$LIBTORCH}/lib/libtorch_cpu.so" ]] ||
            fail "LIBTORCH is set to $LIBTORCH, which has no lib/libtorch_cpu.so; correct it, or unset it and run this again"
        if [[ "${1:-}" == --path ]]; then printf '%s\n' "$LIBTORCH"; else say "LIBTORCH is set to $LIBTORCH: using it, nothing to install"; fi
        return
    fi
    local root target
    root="$(cache_root)"
    if [[ "${1:-}" == --path ]]; then printf '%s/%s\n' "$root" "$NAME"; return; fi
    mkdir -p "$root" || fail "cannot make the cache folder $root"
    root="$(cd "$root" && pwd -P)"
    target="$root/$NAME"
    if ! is_installed "$target"; then
        check_machine
        exec 9>"$root/$NAME.lock"
        flock --nonblock 9 || { say "another install is under way, waiting for it"; flock 9; }
        is_installed "$target" || install "$root"
        say "installed in $target"
    fi
    point_clone_at "$target"
}

main "$@"
