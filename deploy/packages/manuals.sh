#!/usr/bin/env bash
# Writes man pages and completions, as the programs make them: deploy/packages/manuals.sh PROGRAMS MAN COMPLETIONS
set -euo pipefail

programs="$1" man="$2" completions="$3"
for program in ringtune ringtune-coordinator ringtune-worker; do
    "$programs/$program" man "$man"
    "$programs/$program" completions bash >"$completions/$program.bash"
done
gzip -9n "$man"/*.[18]
"$programs/ringtune" completions zsh >"$completions/_ringtune"
"$programs/ringtune" completions fish >"$completions/ringtune.fish"
