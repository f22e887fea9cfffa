#!/usr/bin/env bash
# How long a job's first step takes from its submission: see first.py.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

(cd "$root" && cargo build --release)
"$python" "$here/first.py" --checkpoint "$checkpoint" --ringtune "$root/target/release/ringtune" "$@"
