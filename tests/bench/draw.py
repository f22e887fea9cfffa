#!/usr/bin/env python3
"""Time drawing a picture with us and with diffusers' pipeline in turns, and print medians, minima and ratios.

usage: draw.sh [--resolution 512] [--rounds 3] [--pictures 1] [--warm-up 1] [--steps 25] [--guidance 7.5] [--threads N]
               [--max-ratio 0.5] [--json FILE]

  ours         worker/model/examples/draw.rs: what `ringtune generate` and previews run
  diffusers    old_draw.py: StableDiffusionPipeline in bf16, with channels-last weights and tcmalloc

Both draw one picture with guidance by DDIM, from prompt to pixels; the first --warm-up pictures of each process are left
out. Exit code 1 when ours takes more than --max-ratio of diffusers' median.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def seconds_of(command, environment, skipped):
    """The seconds of each picture after the first ones."""
    command = [str(word) for word in command]
    result = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit(f"error: exit code {result.returncode} from {' '.join(command)}:\n{result.stdout}")
    rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    pictures = [row["picture_seconds"] for row in rows if "picture_seconds" in row]
    if len(pictures) <= skipped:
        sys.exit(f"error: no pictures from {' '.join(command)}:\n{result.stdout}")
    return pictures[skipped:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--ours", type=Path, required=True, help="the program that examples/draw.rs makes")
    parser.add_argument("--tcmalloc", type=Path)
    parser.add_argument("--resolution", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=1, help="timed pictures of each process")
    parser.add_argument("--warm-up", type=int, default=1, help="untimed pictures before them")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--guidance", type=float, default=7.5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--max-ratio", type=float, default=0.5)
    parser.add_argument("--json", type=Path, default=HERE.parent.parent / "target/bench-draw.json")
    options = parser.parse_args()

    common = ["--resolution", options.resolution, "--pictures", options.pictures + options.warm_up,
              "--steps", options.steps, "--guidance", options.guidance, "--threads", options.threads]
    diffusers = "diffusers" if options.tcmalloc else "diffusers, no tcmalloc"
    runs = {
        "ours": ([options.ours, options.checkpoint, *common], {}),
        diffusers: ([sys.executable, HERE / "old_draw.py", options.checkpoint, *common],
                    {"LD_PRELOAD": str(options.tcmalloc)} if options.tcmalloc else {}),
    }
    times = {name: [] for name in runs}
    for number in range(1, options.rounds + 1):
        for name, (command, environment) in runs.items():
            taken = seconds_of(command, environment, options.warm_up)
            print(f"round {number}, {name}: {' '.join(f'{s:.2f}' for s in taken)}", file=sys.stderr, flush=True)
            times[name] += taken
    print(f"a picture, {options.resolution} px, {options.steps} steps, guidance {options.guidance}, bf16, "
          f"{options.threads} threads, {options.rounds} rounds")
    print(f"{'':24}{'median s':>10}{'min s':>8}{'max s':>8}{'pictures':>10}")
    for name, taken in times.items():
        print(f"{name:24}{statistics.median(taken):10.2f}{min(taken):8.2f}{max(taken):8.2f}{len(taken):10}")
    by_medians = statistics.median(times["ours"]) / statistics.median(times[diffusers])
    by_minima = min(times["ours"]) / min(times[diffusers])
    ok = by_medians <= options.max_ratio
    print(f"ours takes {by_medians:.3f} of diffusers' time by medians, {by_minima:.3f} by minima; "
          f"at most {options.max_ratio} is wanted: {'ok' if ok else 'NOT MET'}")
    report = {"resolution": options.resolution, "steps": options.steps, "threads": options.threads, "seconds": times,
              "ratio_by_medians": by_medians, "ratio_by_minima": by_minima, "max_ratio": options.max_ratio, "ok": ok}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
