#!/usr/bin/env bash
# Builds the programs of the last release, or of a given commit, and prints the folder in which they are.
#
#   release.sh [COMMIT]
#
# The last release is the first one in CHANGELOG.md that names its last commit. It is built from that commit of this
# clone, once: the programs stay in ${XDG_CACHE_HOME:-$HOME/.cache}/ringtune/releases/VERSION-COMMIT (about 120 MB), what
# is only needed while they are built goes away again (up to 4 GB). libtorch is the one in the cache.
set -euo pipefail

clone="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)"
readonly PROGRAMS=(ringtune ringtune-coordinator ringtune-worker)
readonly DISK_NEEDED_MIB=4500

say() { printf 'release: %s\n' "$*" >&2; }
fail() {
    printf 'release: error: %s\n' "$*" >&2
    exit 1
}

# 1. Which one?
if (($#)); then
    commit="$(git -C "$clone" rev-parse --short=8 --verify --quiet "$1^{commit}")" || fail "this clone has no commit $1"
    version="$(git -C "$clone" show "$commit:Cargo.toml" | sed -nE 's/^version = "([0-9.]+)"$/\1/p' | head -n 1)"
else
    read -r version commit < <(sed -nE 's/^## \[([0-9.]+)\] - last commit ([0-9a-f]{7,40})$/\1 \2/p' "$clone/CHANGELOG.md" | head -n 1) ||
        fail "CHANGELOG.md names no last commit of a release ('## [0.2.0] - last commit d2a84e9')"
fi
git -C "$clone" cat-file -e "$commit^{commit}" 2>/dev/null ||
    fail "this clone has no commit $commit, the last one of $version (a shallow clone? git fetch --unshallow)"
caches="${XDG_CACHE_HOME:-${HOME:?neither XDG_CACHE_HOME nor HOME is set}/.cache}/ringtune/releases"
folder="$caches/$version-$commit"
is_built() { [[ "$("$folder/ringtune" --version 2>/dev/null)" == "ringtune $version" ]]; }

# 2. Build it, unless it is there. Two at once would build the same.
mkdir -p "$caches"
exec 9>"$folder.lock"
flock 9
if ! is_built; then
    free_mib="$(df --output=avail --block-size=1M "$caches" | tail -n 1 | tr -d ' ')"
    ((free_mib >= DISK_NEEDED_MIB)) || fail "$caches has $free_mib MiB free, $DISK_NEEDED_MIB MiB are needed while building"
    libtorch="${LIBTORCH:-$("$clone/deploy/install-libtorch.sh" --path)}"
    source="$(mktemp -d "$caches/building.XXXXXX")"
    trap 'rm -rf -- "$source"' EXIT
    say "building $version from commit $commit: once, and it takes as long as a first build of this clone"
    git -C "$clone" archive "$commit" | tar -x -C "$source"
    (cd "$source" && env -u CARGO_TARGET_DIR LIBTORCH="$libtorch" "${CARGO:-cargo}" build --release --locked >&2) ||
        fail "$version does not build; see cargo's message above"
    rm -rf -- "$folder"
    mkdir "$folder"
    for program in "${PROGRAMS[@]}"; do
        cp "$source/target/release/$program" "$folder/"
    done
    is_built || fail "what was built from commit $commit does not call itself ringtune $version"
    say "$version is in $folder"
fi
printf '%s\n' "$folder"
