#!/usr/bin/env bash
# Our GPT-2 step beside PyTorch's, taken in turns: see gpt2.py.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
export TRANSFORMERS_VERBOSITY=error HF_HUB_OFFLINE=1
python="$("$here/../reference/setup.sh" | tail -n 1)"

(cd "$root" && cargo build --release --workspace --example gpt2_step)
"$python" "$here/gpt2.py" --ours "$root/target/release/examples/gpt2_step" "$@"
