#!/usr/bin/env bash
# Builds the images from target/packages, with buildah and no daemon: deploy/containers/build.sh [--output DIR]
#
# localhost/ringtune-coordinator, -worker and -cli, tagged with the version, go to this user's containers; the same as OCI
# layouts, with their SBOMs (where syft is installed), to target/images or --output. The same packages and the same base
# make the same images, to the digest. The base is debian:bookworm-slim, or what RINGTUNE_BASE names; where no registry
# has it, one is made of Debian's packages.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
root="$(cd "$here/../.." && pwd -P)"
readonly here root packages="$root/target/packages" base="${RINGTUNE_BASE:-docker.io/library/debian:bookworm-slim}"
readonly TARGETS=(coordinator worker cli)

say() { printf 'images: %s\n' "$*" >&2; }
fail() {
    printf 'images: error: %s\n' "$*" >&2
    exit 1
}
output="$root/target/images"
while (($#)); do
    case "$1" in
        --output) output="${2:?--output needs a folder}"; shift 2 ;;
        -h | --help) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit ;;
        *) fail "unknown argument '$1' (--output and --help are known)" ;;
    esac
done
mkdir -p "$output"
output="$(cd "$output" && pwd -P)"

# 1. What it takes.
for program in buildah skopeo; do
    command -v "$program" >/dev/null || fail "'$program' is missing (sudo apt-get install -y buildah skopeo)"
done
found=("$packages"/ringtune_*_amd64.deb)
[[ -f "${found[0]}" && ${#found[@]} == 1 ]] || fail "$packages has not the packages of one version; make packages makes them"
version="$(basename "${found[0]}" | cut -d_ -f2)"
version="${version%-*}"
# When this was last changed: of a copy without history the beginning of time.
time="$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 0)"
revision="$(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)"

# 2. The base.
if ! buildah inspect --type image "$base" >/dev/null 2>&1 && ! buildah pull --quiet "$base" >/dev/null 2>&1; then
    command -v mmdebstrap >/dev/null || fail "no registry gives $base, and 'mmdebstrap' is missing (sudo apt-get install -y mmdebstrap)"
    say "no registry gives $base: making it of Debian's packages, a minute"
    work="$(mktemp -d)"
    trap 'rm -rf -- "$work"' EXIT
    SOURCE_DATE_EPOCH=0 mmdebstrap --quiet --variant=minbase --include=ca-certificates bookworm "$work/base.tar" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
    container="$(buildah from --name ringtune-base scratch)"
    buildah add --quiet "$container" "$work/base.tar" / >/dev/null
    buildah config --cmd bash "$container"
    buildah commit --quiet --rm --timestamp 0 "$container" "$base" >/dev/null
fi

# 3. The images. Docker's format has health checks, OCI's has not.
for target in "${TARGETS[@]}"; do
    name="localhost/ringtune-$target:$version"
    say "$name"
    buildah build --quiet --isolation chroot --format docker --timestamp "$time" --pull-never --target "$target" --build-arg BASE="$base" \
        --label org.opencontainers.image.title="ringtune-$target" \
        --label org.opencontainers.image.description="Fine-tunes models on clusters of CPUs: the $target" \
        --label org.opencontainers.image.version="$version" \
        --label org.opencontainers.image.revision="$revision" \
        --label org.opencontainers.image.source=https://github.com/ringtune/ringtune \
        --label org.opencontainers.image.documentation=https://github.com/ringtune/ringtune/blob/main/docs/containers.md \
        --label org.opencontainers.image.licenses=Apache-2.0 \
        --tag "$name" --file "$here/Containerfile" "$packages" >/dev/null
    rm -rf -- "${output:?}/$target"
    skopeo copy --quiet "containers-storage:$name" "oci:$output/$target:$version"
    size="$(du --bytes --summarize "$output/$target" | cut -f1)"
    say "$output/$target: $((size / 1000000)) MB, $(sed -n 's/.*"digest":"\([^"]*\)".*/\1/p' "$output/$target/index.json")"
    if command -v syft >/dev/null; then
        syft scan --quiet "oci-dir:$output/$target" --output "cyclonedx-json=$output/$target.cdx.json"
    fi
done
if command -v syft >/dev/null; then
    # What the programs are made of: the images' packages do not say that.
    syft scan --quiet "file:$root/Cargo.lock" --output "cyclonedx-json=$output/crates.cdx.json"
fi
command -v syft >/dev/null || say "note: syft is not installed, there are no SBOMs"
