#!/usr/bin/env python3
"""Time how much of the exchange of a GPT-2's gradients the backward pass hides, and what exact sums cost over fast ones.

usage: overlap.sh [--ranks 2] [--layers 12] [--width 768] [--block 256] [--batch 1] [--microbatches 1] [--threads 1]
                  [--rounds 3] [--steps 3] [--plan-ranks 2,4] [--without-steps] [--json FILE]

Steps: each rank is a process of its own (worker/daemon/benches/overlap) with a GPT-2 from scratch (by default of 124 million
parameters), and all of them take steps together over TCP on loopback, six sorts in turns: sums exact, fast, or fast and in bf16 on
their way, and buckets that leave as they are full, as in a job, or when the whole backward pass is over. Exposed is what the exchange takes once the last rank has
computed, the least over all ranks; it is to be at most 0.3 of what it is without overlap.

Buckets alone: the buckets of GPT-2 124M are added up one after the other by ranks that compute nothing (worker/benches/ring), exact and
fast in turns, one microbatch a rank.

Exit code 1 when a bound is not met.
"""
import argparse
import statistics
import sys
from pathlib import Path

import ring
import turns

HERE = Path(__file__).resolve().parent
BOUND = 0.3
# Numbers of the parameters of GPT-2 124M, and of its buckets: the first of 1 MB, others of 25 MB. Where the worker cuts at
# rows of matrices, which moves each end by a few kilobytes, this does not.
PARAMETERS, FIRST, OTHERS = 124_439_808, (1 << 20) // 4, (25 << 20) // 4
SORTS = {
    "exact": {"exchange": "exact", "overlap": True},
    "exact, afterwards": {"exchange": "exact", "overlap": False},
    "fast": {"exchange": "fast", "overlap": True},
    "fast, afterwards": {"exchange": "fast", "overlap": False},
    "fast_bf16": {"exchange": "fast_bf16", "overlap": True},
    "fast_bf16, afterwards": {"exchange": "fast_bf16", "overlap": False},
}


def take_steps(options):
    """Seconds of steps of each sort, and what of each was exposed."""
    ranks = ring.ours(options.overlap, options.ranks)
    opening = {name: getattr(options, name) for name in ("layers", "width", "block", "batch", "microbatches", "threads")}
    parameters = ranks.ask([opening] * options.ranks)[0]["parameters"]
    print(f"{options.ranks} ranks of {options.threads} thread(s), {parameters} parameters, {options.microbatches} microbatch(es) a rank "
          f"of {options.batch} x {options.block} tokens")
    steps, exposed, computed = ({name: [] for name in SORTS} for _ in range(3))
    for number in range(options.rounds + 1):
        for name, order in SORTS.items():
            for _ in range(options.steps if number else 1):
                answers = ranks.ask([order] * options.ranks)
                # The first round fetches memory.
                if number:
                    steps[name].append(max(answer["step"] for answer in answers))
                    computed[name].append(max(answer["compute"] for answer in answers))
                    exposed[name].append(min(answer["exposed"] for answer in answers))
            if number:
                print(f"round {number}, {name}: step {steps[name][-1]:.3f} s, exposed {exposed[name][-1]:.3f} s", file=sys.stderr, flush=True)
    ranks.end()
    print("\nsteps without their update:")
    columns = {"computed": {name: f"{statistics.median(taken):.3f}" for name, taken in computed.items()}}
    turns.print_table(steps, "fast", columns)
    print("\nof these exposed:")
    turns.print_table({name: [1e3 * seconds for seconds in taken] for name, taken in exposed.items()}, "exact, afterwards", unit="ms")
    print()
    judged = [turns.judged(f"exposed, {name}: of afterwards", turns.ratios(exposed[name], exposed[f"{name}, afterwards"])[0], BOUND)
              for name in ("exact", "fast", "fast_bf16")]
    cost = statistics.median(steps["exact"]) / statistics.median(steps["fast"]) - 1
    print(f"exact sums cost {100 * cost:.1f}% of a step over fast ones")
    return {"steps": steps, "exposed": exposed, "computed": computed}, judged


def add_up_buckets(options, world):
    """Seconds of all buckets, exact and fast."""
    rest = PARAMETERS - FIRST
    floats = [FIRST, *[OTHERS] * (rest // OTHERS), rest % OTHERS]
    contenders = {name: ring.ours(options.ring, world, how={"sums": name}) for name in ("fast", "fast_bf16", "exact")}
    times = {name: [] for name in contenders}
    for _ in range(options.rounds):
        for name, ranks in contenders.items():
            answers = ranks.ask([{"floats": floats, "times": 2, **ranks.how}] * world)
            times[name] += [max(each) for each in zip(*(answer["seconds"] for answer in answers))]
    for ranks in contenders.values():
        ranks.end()
    print(f"\nthe {len(floats)} buckets of GPT-2 124M alone, {world} ranks:")
    turns.print_table(times, "fast")
    return times


def main():
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ring", type=Path, required=True, help="what worker/benches/ring compiles to")
    parser.add_argument("--overlap", type=Path, required=True, help="what worker/daemon/benches/overlap compiles to")
    for name, default in (("ranks", 2), ("layers", 12), ("width", 768), ("block", 256), ("batch", 1), ("microbatches", 1), ("threads", 1),
                          ("rounds", 3), ("steps", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--plan-ranks", type=numbers, default=[2, 4], help="ranks that add up the buckets alone")
    parser.add_argument("--without-steps", action="store_true", help="add up the buckets alone")
    parser.add_argument("--json", type=Path, default=HERE.parent.parent / "target/bench-overlap.json")
    options = parser.parse_args()
    least = min(options.layers, options.width, options.block, options.batch, options.microbatches, options.threads, options.rounds,
                options.steps)
    if min([options.ranks, *options.plan_ranks]) < 2 or least < 1 or options.block > 1024:
        parser.error("allowed are 2 ranks and more, blocks of 1 to 1024 tokens, and 1 and more of all else")
    found, judged = (None, []) if options.without_steps else take_steps(options)
    buckets = {world: add_up_buckets(options, world) for world in options.plan_ranks}
    ok = all(bound["met"] for bound in judged)
    turns.write(options.json, {"steps": found, "buckets": buckets, "bounds": judged, "ok": ok})
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
