#!/usr/bin/env bash
# As RUSTC_WORKSPACE_WRAPPER: clippy compiles the tests, and so looks at all code of the workspace while it is compiled anyway.
#
# A crate's unit tests are compiled with all of the crate, and each program's and benchmark's too. What users get is compiled by
# rustc alone, as it is for them: clippy's compiler leaves some optimisations out. cargo clippy instead reads every crate and
# every dependency once more.
#
# What has tests is not optimised here: that is most of its build, and more than all of its tests take longer then.
set -euo pipefail
for argument in "$@"; do
    case "$argument" in
    --test) exec clippy-driver "$@" -D warnings -C opt-level=0 ;;
    */benches/*.rs | benches/*.rs | */examples/*.rs | examples/*.rs | */build.rs | build.rs)
        exec clippy-driver "$@" -D warnings
        ;;
    esac
done
exec "$@" -D warnings
