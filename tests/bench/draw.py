#!/usr/bin/env python3
"""Time drawing a picture with us and with diffusers' pipeline in turns, and print medians, minima and ratios.

usage: draw.sh [--resolution 512] [--rounds 3] [--pictures 1] [--warm-up 1] [--steps 25] [--guidance 7.5] [--threads N]
               [--precision bf16|fp32] [--max-ratio 0.5] [--json FILE]

  ours         worker/model/examples/draw.rs: what `ringtune generate` and previews run
  diffusers    old_draw.py: StableDiffusionPipeline, with channels-last weights and tcmalloc

Both draw one picture with guidance by DDIM, from prompt to pixels; the first --warm-up pictures of each process are left
out. Exit code 1 when ours takes more than --max-ratio of
diffusers' time, by medians or by minima.
"""
import argparse
import sys
from pathlib import Path

import turns

HERE = Path(__file__).resolve().parent


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
    parser.add_argument("--threads", type=int, default=turns.physical_cores(), help="default: one a physical core")
    turns.add_precision(parser)
    parser.add_argument("--max-ratio", type=float, default=0.5)
    parser.add_argument("--json", type=Path, default=HERE.parent.parent / "target/bench-draw.json")
    options = parser.parse_args()

    common = ["--resolution", options.resolution, "--pictures", options.pictures + options.warm_up,
              "--steps", options.steps, "--guidance", options.guidance, "--threads", options.threads, "--precision", options.precision]
    diffusers = "diffusers" if options.tcmalloc else "diffusers, no tcmalloc"
    runs = {
        "ours": ([options.ours, options.checkpoint, *common], {}),
        diffusers: ([sys.executable, HERE / "old_draw.py", options.checkpoint, *common],
                    {"LD_PRELOAD": str(options.tcmalloc)} if options.tcmalloc else {}),
    }
    times, _ = turns.in_turns(runs, options.rounds, "picture_seconds", options.warm_up)
    print(f"a picture, {options.resolution} px, {options.steps} steps, guidance {options.guidance}, {options.precision}, "
          f"{options.threads} threads, {options.rounds} rounds")
    turns.print_table(times, diffusers)
    ways = zip(("medians", "minima"), turns.ratios(times["ours"], times[diffusers]))
    judged = [turns.judged(f"ours of {diffusers}, by {way}", ratio, options.max_ratio) for way, ratio in ways]
    ok = all(bound["met"] for bound in judged)
    turns.write(options.json, {"resolution": options.resolution, "steps": options.steps, "threads": options.threads,
                               "precision": options.precision,
                               "picture_seconds": times, "bounds": judged, "ok": ok})
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
