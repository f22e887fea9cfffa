#!/usr/bin/env python3
"""Time our training step and the one it replaces in turns, and judge what they say by the bounds of the project.

usage: bench.sh [--resolution 512] [--batch 1] [--rounds 5] [--steps 4] [--warm-up 1] [--threads N]
                [--max-ratio R] [--max-ratio-tuned R] [--min-roofline 0.4] [--max-memory 4.0] [--json FILE]

Absolute times wander by a factor of two on shared machines, so every round runs each contender once, in turn, and the
ratios are those of medians and of minima over all rounds:

  ours         ringtune-worker bench step: latents from cached moments, gradient of the learned rows only
  as it is     old_step.py: diffusers' script
  tuned        old_step.py with channels-last weights and tcmalloc

The first --warm-up steps of each process are left out. What of ours the machine allows (the roofline) is measured by the
worker between its steps. The bounds of the ratios depend on what multiplies: see BOUNDS. Prints a table and the bounds,
met or not, and one JSON object to --json (default target/bench.json). Exit code 1 when a bound is not met.
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
# At most this of the step as it is and of the tuned one, by the worker's matrix instructions.
BOUNDS = {"amx_bf16": (1 / 6, 1 / 3.5)}
WITHOUT_AMX = (0.3, 0.4)


def contenders(options):
    """{name: (command, extra environment)}."""
    size = ["--resolution", options.resolution, "--batch", options.batch, "--threads", options.threads]
    old = [sys.executable, OLD_STEP, options.checkpoint, *size, "--steps", options.steps + options.warm_up]
    ours = [options.worker, "bench", "step", options.checkpoint, *size, "--steps", options.steps, "--warm-up",
            options.warm_up, "--precision", "bf16", "--output", "json"]
    preload = {"LD_PRELOAD": str(options.tcmalloc)} if options.tcmalloc else {}
    return {
        "ours": (ours, {}),
        "as it is": (old, {}),
        "tuned" if options.tcmalloc else "tuned, no tcmalloc": ([*old, "--channels-last"], preload),
    }


def run_once(command, environment, warm_up):
    """All lines, the seconds of the steps after the warm-up, and the peak memory in bytes."""
    command = [str(word) for word in command]
    result = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit(f"error: exit code {result.returncode} from {' '.join(command)}")
    rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    steps = [row["step_seconds"] for row in rows if "step_seconds" in row]
    memory = [row[key] for row in rows for key in ("peak_private_bytes", "peak_resident_bytes") if key in row]
    if len(steps) <= warm_up or not memory:
        sys.exit(f"error: no steps or no memory figure from {' '.join(command)}:\n{result.stdout}")
    return rows, steps[warm_up:], max(memory)


def print_table(results, baseline):
    print(f"{'':22}{'median s':>10}{'min s':>8}{'max s':>8}{'steps':>7}{'peak GB':>9}{'of as it is':>13}{'by minima':>11}")
    for name, result in results.items():
        times = result["step_seconds"]
        by_median, by_minimum = ratios(result, baseline)
        print(f"{name:22}{result['median_seconds']:10.3f}{min(times):8.3f}{max(times):8.3f}{len(times):7}"
              f"{result['peak_bytes'] / 1e9:9.2f}{by_median:13.3f}{by_minimum:11.3f}")


def ratios(ours, other):
    """By medians and by minima."""
    return (ours["median_seconds"] / other["median_seconds"], min(ours["step_seconds"]) / min(other["step_seconds"]))


def machine(summaries, ours):
    """What the worker's summaries say together: the best rates of all rounds, beside the steps of all rounds."""
    best = lambda key: max(summary[key] for summary in summaries)
    convolution, product = best("convolution_flops_per_second"), best("product_flops_per_second")
    shortest = summaries[0]["flop"] / max(convolution, product)
    return {
        "flop": summaries[0]["flop"],
        "convolution_flops_per_second": convolution,
        "product_flops_per_second": product,
        "copy_bytes_per_second": best("copy_bytes_per_second"),
        "of_roofline": shortest / ours["median_seconds"],
        "of_roofline_by_minimum": shortest / min(ours["step_seconds"]),
        "page_faults": statistics.median(summary["page_faults"] for summary in summaries),
        "involuntary_switches": statistics.median(summary["involuntary_switches"] for summary in summaries),
    }


def judge(options, instructions, results, found):
    """[(what, figure, bound, whether it is met)]."""
    of_old, of_tuned = BOUNDS.get(instructions, WITHOUT_AMX)
    of_old = of_old if options.max_ratio is None else options.max_ratio
    of_tuned = of_tuned if options.max_ratio_tuned is None else options.max_ratio_tuned
    tuned = next(name for name in results if name.startswith("tuned"))
    judged = []
    for name, bound in (("as it is", of_old), (tuned, of_tuned)):
        for way, ratio in zip(("medians", "minima"), ratios(results["ours"], results[name])):
            judged.append((f"ours of {name}, by {way}", f"{ratio:.3f}", f"at most {bound:.3f}", ratio <= bound))
    share = found["of_roofline"]
    judged.append(("of the roofline, by medians", f"{share:.3f}", f"at least {options.min_roofline:.3f}",
                   share >= options.min_roofline))
    memory = results["ours"]["peak_bytes"] / 1e9
    judged.append(("peak private memory, GB", f"{memory:.2f}", f"at most {options.max_memory:.2f}",
                   memory <= options.max_memory))
    return judged


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--worker", type=Path, required=True, help="the program ringtune-worker")
    parser.add_argument("--tcmalloc", type=Path)
    parser.add_argument("--resolution", type=int, default=512)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="timed steps of each process")
    parser.add_argument("--warm-up", type=int, default=1, help="untimed steps before them")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--max-ratio", type=float, help="ours of the step as it is [default: 1/6 with AMX, else 0.3]")
    parser.add_argument("--max-ratio-tuned", type=float, help="ours of the tuned one [default: 1/3.5 with AMX, else 0.4]")
    parser.add_argument("--min-roofline", type=float, default=0.4, help="the step's work at the best rate, of the step")
    parser.add_argument("--max-memory", type=float, default=4.0, help="private, in GB")
    parser.add_argument("--json", type=Path, default=HERE.parent.parent / "target/bench.json")
    options = parser.parse_args()
    for name in ("resolution", "batch", "rounds", "steps", "warm_up", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}, allowed is 1 and more")

    runs = contenders(options)
    results = {name: {"step_seconds": [], "peak_bytes": 0} for name in runs}
    instructions, summaries = "unknown", []
    for number in range(1, options.rounds + 1):
        for name, (command, environment) in runs.items():
            rows, steps, memory = run_once(command, environment, options.warm_up)
            print(f"round {number}, {name}: {' '.join(f'{s:.3f}' for s in steps)}", file=sys.stderr, flush=True)
            results[name]["step_seconds"] += steps
            results[name]["peak_bytes"] = max(results[name]["peak_bytes"], memory)
            if name == "ours":
                instructions = rows[0]["matrix_instructions"]
                summaries.append(rows[-1])
    for result in results.values():
        result["median_seconds"] = statistics.median(result["step_seconds"])
        result["min_seconds"] = min(result["step_seconds"])
    found = machine(summaries, results["ours"])
    print(f"textual inversion, {options.resolution} px, batch {options.batch}, bf16 ({instructions}), {options.threads} threads, "
          f"{options.rounds} rounds of {options.steps} steps (peak: ours private memory, the others resident)")
    print_table(results, results["as it is"])
    print(f"work of a step {found['flop'] / 1e12:.3f} TFLOP; this machine at best {found['convolution_flops_per_second'] / 1e12:.3f} "
          f"TFLOP/s convolution, {found['product_flops_per_second'] / 1e12:.3f} TFLOP/s product, "
          f"{found['copy_bytes_per_second'] / 1e9:.1f} GB/s copy; {found['page_faults']:.0f} page faults a step")
    judged = judge(options, instructions, results, found)
    for what, figure, bound, met in judged:
        print(f"{what:36}{figure:>8}   {bound:16}{'met' if met else 'NOT MET'}")
    ok = all(met for _, _, _, met in judged)
    report = {
        "resolution": options.resolution, "batch": options.batch, "threads": options.threads, "rounds": options.rounds,
        "matrix_instructions": instructions, "results": results, "machine": found,
        "bounds": [{"what": what, "figure": float(figure), "bound": bound, "met": met} for what, figure, bound, met in judged],
        "ratio_to_as_it_is": ratios(results["ours"], results["as it is"])[0], "ok": ok,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
