#!/usr/bin/env bash
# Runs buf, which checks the API's description, with the arguments given, in the clone's top folder.
#
# Installs it into the user's cache first (once, about 90 MB), from the npm package that has it as a program.
# Exit code 3: npm is missing.
set -euo pipefail

readonly VERSION=1.75.0
installed="${XDG_CACHE_HOME:-$HOME/.cache}/ringtune/buf-$VERSION"
readonly installed
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ! -x "$installed/node_modules/.bin/buf" ]]; then
    command -v npm >/dev/null || exit 3
    mkdir -p "$(dirname "$installed")"
    # Made beside its place and moved there whole: what is broken off leaves nothing, two at a time do no harm.
    making="$(mktemp -d "$installed.XXXXXX")"
    trap 'rm -rf "$making"' EXIT
    # Its install script is not needed: the program comes as a package of its own for each platform.
    if ! npm install --prefix "$making" --ignore-scripts --no-audit --no-fund --loglevel=error \
        "@bufbuild/buf@$VERSION" >"$making/log" 2>&1; then
        head -n 5 "$making/log" >&2
        echo "buf.sh: error: npm cannot install buf $VERSION; is its registry reachable?" >&2
        exit 1
    fi
    chmod 755 "$making"
    mv -T "$making" "$installed" 2>/dev/null || [[ -x "$installed/node_modules/.bin/buf" ]]
fi

"$installed/node_modules/.bin/buf" "$@"
