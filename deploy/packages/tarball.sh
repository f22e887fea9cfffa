#!/usr/bin/env bash
# Puts what the tarball has into a folder: deploy/packages/tarball.sh STAGE CLONE FOLDER
set -euo pipefail

stage="$1" clone="$2" folder="$3"
mkdir -p "$folder"/{bin,lib/ringtune,share/man/man1,share/man/man8,share/completions,share/doc,share/examples}
cp "$stage"/bin/* "$folder/bin/"
cp "$stage"/lib/* "$folder/lib/ringtune/"
cp "$stage"/man/*.1.gz "$folder/share/man/man1/"
cp "$stage"/man/*.8.gz "$folder/share/man/man8/"
cp "$stage"/completions/* "$folder/share/completions/"
cp "$stage"/doc/* "$clone/LICENSE" "$folder/share/doc/"
cp -r "$clone"/docs "$clone/README.md" "$clone/CHANGELOG.md" "$folder/share/doc/"
cp "$clone"/deploy/examples/* "$folder/share/examples/"
cp -r "$clone"/deploy/{systemd,prometheus,grafana,slurm} "$folder/share/"
