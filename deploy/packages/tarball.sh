#!/usr/bin/env bash
# Puts what the tarball has into a folder: deploy/packages/tarball.sh STAGE CLONE FOLDER
set -euo pipefail

stage="$1" clone="$2" folder="$3"
mkdir -p "$folder"/{bin,lib/ringtune,share/man/man1,share/completions,share/doc,share/examples,share/systemd}
cp "$stage"/bin/* "$folder/bin/"
cp "$stage"/lib/* "$folder/lib/ringtune/"
cp "$stage"/man/* "$folder/share/man/man1/" 2>/dev/null || true
cp "$stage"/completions/* "$folder/share/completions/" 2>/dev/null || true
cp "$stage"/doc/* "$clone/LICENSE" "$folder/share/doc/"
cp -r "$clone"/docs "$clone/README.md" "$clone/CHANGELOG.md" "$folder/share/doc/"
cp "$clone"/deploy/examples/* "$folder/share/examples/"
cp -r "$clone"/deploy/systemd/* "$folder/share/systemd/"
