#!/usr/bin/env bash
# Makes the Debian packages and the tarball from what is built: deploy/packages/build.sh [--programs DIR --version V] [--output DIR]
#
# Without --programs these are the programs of this clone (make build). With it they are those of another release, which
# are packed the way this one is: the test of upgrades needs them. Packages go to target/packages, or to --output.
#
# What a package is made of stands in the Cargo.toml of its program, below [package.metadata.deb]. They take their files
# from target/packages/stage, which this script fills. cargo-deb is installed once, into ${XDG_CACHE_HOME:-$HOME/.cache}, where
# the package of libtorch is kept, too.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
root="$(cd "$here/../.." && pwd -P)"
readonly here root
readonly CARGO_DEB=3.8.0
readonly PROGRAMS=(ringtune ringtune-coordinator ringtune-worker)
# Raise with what the package of libtorch holds besides libtorch itself.
readonly LIBTORCH_REVISION=1
readonly stage="$root/target/packages/stage"

say() { printf 'packages: %s\n' "$*" >&2; }
fail() {
    printf 'packages: error: %s\n' "$*" >&2
    exit 1
}

programs="$root/target/release"
version=""
output="$root/target/packages"
while (($#)); do
    case "$1" in
        --programs) programs="$(cd "${2:?--programs needs a folder}" && pwd -P)"; shift 2 ;;
        --version) version="${2:?--version needs a version}"; shift 2 ;;
        --output) mkdir -p "${2:?--output needs a folder}"; output="$(cd "$2" && pwd -P)"; shift 2 ;;
        -h | --help) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit ;;
        *) fail "unknown argument '$1' (--programs, --version, --output and --help are known)" ;;
    esac
done

# 1. What it takes.
needed=()
for pair in patchelf:patchelf dpkg-deb:dpkg dpkg-shlibdeps:dpkg-dev strip:binutils xz:xz-utils gzip:gzip; do
    command -v "${pair%%:*}" >/dev/null || needed+=("${pair##*:}")
done
((${#needed[@]} == 0)) || fail "tools are missing: sudo apt-get install -y ${needed[*]}"
for program in "${PROGRAMS[@]}"; do
    [[ -x "$programs/$program" ]] || fail "$programs has no $program; make build makes it"
done
said="$("$programs/ringtune" --version)"
[[ -n "$version" ]] || version="${said#ringtune }"
[[ "$said" == "ringtune $version" ]] || fail "--version $version, but $programs/ringtune says '$said'"
libtorch="$("$root/deploy/install-libtorch.sh" --path)"
libtorch_version="$(cut -d+ -f1 "$libtorch/build-version")-$LIBTORCH_REVISION"

caches="${XDG_CACHE_HOME:-${HOME:?neither XDG_CACHE_HOME nor HOME is set}/.cache}/ringtune"
cache="$caches/cargo-deb-$CARGO_DEB"
if ! [[ -x "$cache/bin/cargo-deb" ]]; then
    say "installing cargo-deb $CARGO_DEB: once, a few minutes"
    mkdir -p "$cache"
    (
        exec 9>"$cache.lock"
        flock 9
        cd / # not this clone's settings
        "${CARGO:-cargo}" install --quiet --locked "cargo-deb@$CARGO_DEB" --no-default-features --root "$cache"
    )
fi

# 2. What goes into them.
rm -rf -- "$stage"
mkdir -p "$stage"/{bin,lib,man,completions,doc}
for program in "${PROGRAMS[@]}"; do
    strip -o "$stage/bin/$program" "$programs/$program"
done
# Beside the programs wherever they are: /usr/bin and /usr/lib/ringtune, or bin and lib/ringtune in a folder.
# shellcheck disable=SC2016
patchelf --set-rpath '$ORIGIN/../lib/ringtune' "$stage/bin/ringtune-worker"
cp "$libtorch"/lib/*.so* "$stage/lib/" # as they came: they look for each other beside themselves
# By this clone's programs: those of releases before 0.3.0 make none.
"$here/manuals.sh" "$root/target/release" "$stage/man" "$stage/completions"
"${CARGO:-cargo}" metadata --format-version 1 --locked --filter-platform x86_64-unknown-linux-gnu --manifest-path "$root/Cargo.toml" |
    "$here/notices.py" ringtune-cli ringtune-coordinator ringtune-worker-daemon |
    gzip -9n >"$stage/doc/third-party.txt.gz"
"$here/libtorch-copyright.sh" "$libtorch" >"$stage/doc/libtorch-copyright"

# 3. The packages.
package() { # crate, version, file, arguments…
    local crate="$1" of="$2" file="$3"
    shift 3
    say "$file"
    "$cache/bin/cargo-deb" --quiet --no-build --no-strip --locked --manifest-path "$root/$crate/Cargo.toml" --deb-version "$of" \
        --output "$output/$file" "$@"
}
rm -f -- "$output"/*.deb "$output"/*.tar.xz
package coordinator/cli "$version-1" "ringtune_$version-1_amd64.deb"
package coordinator "$version-1" "ringtune-coordinator_$version-1_amd64.deb"
package worker/daemon "$version-1" "ringtune-worker_$version-1_amd64.deb"
# Minutes of compression, and the same for many builds: it is kept.
kept="$caches/packages/$(cat "$libtorch/ringtune-layout" "$stage/doc/libtorch-copyright" | sha256sum | cut -c1-16)"
libtorch_file="ringtune-libtorch_${libtorch_version}_amd64.deb"
if ! [[ -f "$kept/$libtorch_file" ]]; then
    package worker/daemon "$libtorch_version" "$libtorch_file" --variant libtorch --compress-system
    mkdir -p "$kept"
    cp "$output/$libtorch_file" "$kept/partial"
    mv "$kept/partial" "$kept/$libtorch_file"
fi
cp "$kept/$libtorch_file" "$output/$libtorch_file"

# 4. The tarball: the same files in one folder.
folder="ringtune-$version-linux-x86_64"
say "$folder.tar.xz"
"$here/tarball.sh" "$stage" "$root" "$stage/$folder"
tar --create --sort=name --owner=0 --group=0 --numeric-owner --directory "$stage" "$folder" |
    xz --threads=0 -3 >"$output/$folder.tar.xz"
(cd "$output" && sha256sum -- *.deb *.tar.xz >SHA256SUMS)
say "in $output: $(cd "$output" && ls -1 -- *.deb *.tar.xz | tr '\n' ' ')"
