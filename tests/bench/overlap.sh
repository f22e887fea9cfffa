#!/usr/bin/env bash
# How much of a GPT-2's exchange its backward pass hides, taken in turns: see overlap.py.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"

programs="$(cd "$root" && cargo bench --workspace --bench ring --bench overlap --no-run --message-format=json |
    python3 -c 'import json, sys
for line in sys.stdin:
    built = json.loads(line) if line.startswith("{") else {}
    if built.get("executable") and built["target"]["name"] in ("ring", "overlap"):
        print("--" + built["target"]["name"], built["executable"])')"
# shellcheck disable=SC2086 # Options and the programs they name.
python3 "$here/overlap.py" $programs "$@"
