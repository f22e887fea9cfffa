#!/usr/bin/env bash
# Checks the style of the API's description (buf.yaml) and that it only grew since the last release.
#
# check-api.sh release: after that, makes the description as it is now the released one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly RELEASED=proto/released/v1.binpb

found=0
deploy/buf.sh --version >/dev/null || found=$?
if ((found == 3)) && [[ "${1:-}" != release ]]; then
    echo "note: npm is not installed, the API's description was not checked with buf" >&2
    exit 0
elif ((found)); then
    ((found == 3)) && echo "check-api.sh: error: npm is missing, which brings buf (Debian: npm)" >&2
    exit 1
fi

deploy/buf.sh lint
deploy/buf.sh breaking --against "$RELEASED"
if [[ "${1:-}" == release ]]; then
    deploy/buf.sh build --exclude-source-info -o "$RELEASED"
    echo "check-api.sh: $RELEASED is the API as it is now: commit it with the release" >&2
fi
