"""Our GPT-2 step beside PyTorch's, with and without torch.compile: all of them in turns.

usage: gpt2.py --ours PROGRAM [--rounds 2] [--steps 4] [--batch 4] [--block 1024] [--threads N] [--first 1] [--out FILE]
[--precision bf16|fp32]

Beside the seconds by the clock stand those that all threads computed: on a machine that does other things too, these are
what can be compared. Bound: two thirds of torch.compile's; goal: half.
"""
import argparse
import sys
from pathlib import Path

import turns

BOUND, GOAL = 2 / 3, 1 / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--block", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=turns.physical_cores())
    parser.add_argument("--first", type=int, default=1, help="steps of each run that are not counted")
    parser.add_argument("--out", type=Path)
    turns.add_precision(parser)
    options = parser.parse_args()
    sizes = [word for name in ("steps", "batch", "block", "threads") for word in (f"--{name}", getattr(options, name))]
    sizes += ["--fp32"] if options.precision == "fp32" else []
    peer = [sys.executable, Path(__file__).with_name("gpt2_step.py"), *sizes]
    # Threads that spin while they wait would count as computing.
    quiet = {"GOMP_SPINCOUNT": "0"}
    runs = {
        "ours": ([options.ours, *sizes], quiet),
        "torch": (peer, quiet),
        "torch.compile": ([*peer, "--compile"], quiet),
    }
    times, lines = turns.in_turns(runs, options.rounds, "step_seconds", options.first)
    computed = {
        name: [row["cpu_seconds"] for rows in rounds for row in [row for row in rows if "cpu_seconds" in row][options.first:]]
        for name, rounds in lines.items()
    }
    turns.print_table(times, "torch.compile")
    print("\nseconds that all threads computed:")
    turns.print_table(computed, "torch.compile")
    by_median, by_minimum = turns.ratios(computed["ours"], computed["torch.compile"])
    print()
    judgements = [turns.judged("computed, of torch.compile's, by medians", by_median, bound) for bound in (BOUND, GOAL)]
    report = {"tokens": options.batch * options.block, "threads": options.threads, "times": times, "computed": computed,
              "by_minimum": by_minimum, "judgements": judgements}
    if options.out:
        turns.write(options.out, report)


if __name__ == "__main__":
    main()
