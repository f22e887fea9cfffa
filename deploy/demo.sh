#!/usr/bin/env bash
# The demo: two workers teach a small model "green star", a pair that its training captions never contained, and a
# sheet is drawn: the training pictures, samples of the initializer's prompt (before), samples of the learned token
# (after). Everything goes to demo/ in the clone.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
ringtune="$root/target/release/ringtune"
fixtures="$root/tests/fixtures"
out="$root/demo"

# Two workers, a coordinator, about a minute.
"$ringtune" run "$fixtures/demo/green-star.toml" --workers 2 -o "$out" >/dev/null
"$ringtune" generate --model "$fixtures/toy-sd" --embeds "$out/learned_embeds.safetensors" \
    --prompt "a photo of a star" --prompt "a photo of a <green-star>" \
    --count 8 --seed 1 --steps 25 --guidance 4 --scheduler ddim --threads 1 \
    --sheet --training-images "$fixtures/concepts/green-star" --output "$out/sheet.png"

cat >&2 <<EOF

  $out/sheet.png
      the training pictures; "a photo of a star" before; "a photo of a <green-star>" after
  $out/learned_embeds.safetensors
      the embedding, for diffusers' load_textual_inversion
  $out/metrics.csv
      loss and timings of each step
EOF
