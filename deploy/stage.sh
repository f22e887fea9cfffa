#!/usr/bin/env bash
# Runs a command and says what it cost: deploy/stage.sh NAME COMMAND [ARGUMENT…]
#
# The line goes to stderr, and also into the file RINGTUNE_STAGES where that is set: .ci/run prints the table of all
# stages at its end. CPU seconds are those of the command and of every process that it waited for.
set -uo pipefail

name="$1"
shift
figures="$(mktemp)"
trap 'rm -f "$figures"' EXIT
TIMEFORMAT='%R %U %S'
{ time "$@" 2>&3; } 3>&2 2>"$figures"
status=$?
line="$(tail -n 1 "$figures" | awk -v name="$name" -v status="$status" '{
    printf "%-28s %6.0f s wall %6.0f s CPU%s", name, $1, $2 + $3, status == 0 ? "" : "  FAILED"
}')"
echo "stage: $line" >&2
[[ -z "${RINGTUNE_STAGES:-}" ]] || echo "$line" >>"$RINGTUNE_STAGES"
exit "$status"
