#!/usr/bin/env bash
# Prints the path of an archive with a clean Debian 12, which it makes once: deploy/packages/root.sh
#
# Needs root, debootstrap and the network. The archive stays in ${XDG_CACHE_HOME:-$HOME/.cache}/ringtune.
set -euo pipefail

readonly SUITE=bookworm
readonly MIRROR="${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
say() { printf 'root: %s\n' "$*" >&2; }
fail() {
    printf 'root: error: %s\n' "$*" >&2
    exit 1
}

((EUID == 0)) || fail "making a root file system needs root"
command -v debootstrap >/dev/null || fail "'debootstrap' is missing (sudo apt-get install -y debootstrap)"
cache="${XDG_CACHE_HOME:-${HOME:?neither XDG_CACHE_HOME nor HOME is set}/.cache}/ringtune"
archive="$cache/debian-$SUITE-minbase.tar"
mkdir -p "$cache"
exec 9>"$archive.lock"
flock 9
if ! [[ -f "$archive" ]]; then
    work="$(mktemp -d "$cache/debian.XXXXXX")"
    trap 'rm -rf -- "$work"' EXIT
    say "making a clean Debian ($SUITE): once, two minutes"
    debootstrap --variant=minbase "$SUITE" "$work/root" "$MIRROR" >"$work/log" 2>&1 ||
        { tail -n 20 "$work/log" >&2; fail "debootstrap failed, see above"; }
    chroot "$work/root" apt-get clean
    tar --create --numeric-owner --directory "$work/root" --file "$work/root.tar" .
    mv "$work/root.tar" "$archive"
fi
printf '%s\n' "$archive"
