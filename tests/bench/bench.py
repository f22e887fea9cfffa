#!/usr/bin/env python3
"""Time our textual-inversion step and the one it replaces in turns, and print medians and ratios.

usage: bench.sh [--resolution 512] [--batch 1] [--rounds 3] [--steps 4] [--warm-up 1] [--threads N]
                [--max-ratio 0.5] [--json FILE]

Absolute times wander by a factor of two on shared machines, so every round runs each contender once, in turn, and the
ratios are those of medians over all rounds:

  ours         worker/model/examples/step.rs: latents from cached moments, gradient of the learned rows only
  as it is     old_step.py: diffusers' script
  tuned        old_step.py with channels-last weights and tcmalloc

The first --warm-up steps of each process are left out. Prints a table, and one JSON object to --json (default
target/bench.json). Exit code 1 when ours takes more than --max-ratio of the step as it is.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
OLD_STEP = HERE / "old_step.py"


def contenders(options):
    """{name: (command, extra environment)}."""
    common = ["--resolution", options.resolution, "--batch", options.batch, "--steps", options.steps + options.warm_up,
              "--threads", options.threads]
    old = [sys.executable, OLD_STEP, options.checkpoint, *common]
    preload = {"LD_PRELOAD": str(options.tcmalloc)} if options.tcmalloc else {}
    return {
        "ours": ([options.ours, options.checkpoint, *common, "--precision", "bf16"], {}),
        "as it is": (old, {}),
        "tuned" if options.tcmalloc else "tuned, no tcmalloc": ([*old, "--channels-last"], preload),
    }


def run_once(command, environment, warm_up):
    """The seconds of the steps after the warm-up, and the peak memory in bytes."""
    command = [str(word) for word in command]
    result = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit(f"error: exit code {result.returncode} from {' '.join(command)}")
    rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    steps = [row["step_seconds"] for row in rows if "step_seconds" in row]
    memory = [row[key] for row in rows for key in ("peak_private_bytes", "peak_resident_bytes") if key in row]
    if len(steps) <= warm_up or not memory:
        sys.exit(f"error: no steps or no memory figure from {' '.join(command)}:\n{result.stdout}")
    return steps[warm_up:], max(memory)


def print_table(results, baseline):
    print(f"{'':22}{'median s':>10}{'min s':>8}{'max s':>8}{'steps':>7}{'peak GB':>9}{'of as it is':>13}")
    for name, result in results.items():
        times = result["step_seconds"]
        ratio = result["median_seconds"] / baseline["median_seconds"] if baseline else float("nan")
        print(f"{name:22}{result['median_seconds']:10.3f}{min(times):8.3f}{max(times):8.3f}{len(times):7}"
              f"{result['peak_bytes'] / 1e9:9.2f}{ratio:13.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--ours", type=Path, required=True, help="the program that examples/step.rs makes")
    parser.add_argument("--tcmalloc", type=Path)
    parser.add_argument("--resolution", type=int, default=512)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="timed steps of each process")
    parser.add_argument("--warm-up", type=int, default=1, help="untimed steps before them")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--max-ratio", type=float, default=0.5)
    parser.add_argument("--json", type=Path, default=HERE.parent.parent / "target/bench.json")
    options = parser.parse_args()

    runs = contenders(options)
    results = {name: {"step_seconds": [], "peak_bytes": 0} for name in runs}
    for number in range(1, options.rounds + 1):
        for name, (command, environment) in runs.items():
            steps, memory = run_once(command, environment, options.warm_up)
            print(f"round {number}, {name}: {' '.join(f'{s:.3f}' for s in steps)}", file=sys.stderr, flush=True)
            results[name]["step_seconds"] += steps
            results[name]["peak_bytes"] = max(results[name]["peak_bytes"], memory)
    for result in results.values():
        result["median_seconds"] = statistics.median(result["step_seconds"])
    baseline = results["as it is"]
    print(f"textual inversion, {options.resolution} px, batch {options.batch}, bf16, {options.threads} threads, "
          f"{options.rounds} rounds of {options.steps} steps (peak: ours private memory, the others resident)")
    print_table(results, baseline)
    ratio = results["ours"]["median_seconds"] / baseline["median_seconds"]
    ok = ratio <= options.max_ratio
    print(f"ours takes {ratio:.3f} of the step as it is; at most {options.max_ratio} is wanted: {'ok' if ok else 'NOT MET'}")
    report = {
        "resolution": options.resolution, "batch": options.batch, "threads": options.threads, "rounds": options.rounds,
        "results": results, "ratio_to_as_it_is": ratio, "max_ratio": options.max_ratio, "ok": ok,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
