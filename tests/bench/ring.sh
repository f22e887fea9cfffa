#!/usr/bin/env bash
# Our ring beside Gloo, taken in turns: see ring.py.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
python="$("$here/../reference/setup.sh" | tail -n 1)"

program="$(cd "$root" && cargo bench --workspace --bench ring --no-run --message-format=json |
    "$python" -c 'import json, sys
for line in sys.stdin:
    built = json.loads(line) if line.startswith("{") else {}
    if built.get("executable") and built["target"]["name"] == "ring":
        print(built["executable"])')"
"$python" "$here/ring.py" --program "$program" "$@"
