#!/usr/bin/env python3
"""Time our training step and the one it replaces in turns, and judge what they say by the bounds of the project.

usage: bench.sh [--resolution 512] [--batch 1] [--rounds 5] [--steps 4] [--warm-up 1] [--threads N] [--precision bf16|fp32]
                [--lora RANK | --unet [--ema] [--old-checkpointing]] [--max-ratio R] [--max-ratio-tuned R] [--min-roofline 0.4] [--max-memory 4.0] [--json FILE]

Every round runs each contender once (turns.py says why):

  ours         ringtune-worker bench step: latents from cached moments, gradient of the learned rows only
  as it is     old_step.py: diffusers' script
  tuned        old_step.py with channels-last weights and tcmalloc

With --lora it is a LoRA's step: gradient and update of adapters beside the UNet's attention, and train_text_to_image_lora.py's.

With --unet it is the whole UNet's: gradient and update of all of its weights, and train_text_to_image.py's. With
--old-checkpointing the script computes its passes again to save memory, where it has none otherwise; ours does not.

The first --warm-up steps of each process are left out. What of ours the machine allows (the roofline) is measured by the
worker between its steps. The bounds of the ratios depend on what multiplies: see BOUNDS. Prints a table and the bounds,
met or not, and one JSON object to --json (default target/bench.json). Exit code 1 when a bound is not met.
"""
import argparse
import statistics
import sys
from pathlib import Path

import turns

HERE = Path(__file__).resolve().parent
OLD_STEP = HERE / "old_step.py"
# At most this of the step as it is and of the tuned one, by the worker's matrix instructions.
BOUNDS = {"amx_bf16": (1 / 6, 1 / 3.5)}
WITHOUT_AMX = (0.3, 0.4)
# Of a LoRA's, and of the peak memory of the step as it is.
LORA_BOUNDS = {"amx_bf16": (0.3, 0.45)}
LORA_WITHOUT_AMX = (0.4, 0.45)
LORA_MEMORY = 0.8
# The same of the whole UNet's: twice, and 1.4 times the images a second with AMX.
UNET_BOUNDS = {"amx_bf16": (1 / 2, 1 / 1.4)}
UNET_WITHOUT_AMX = (1 / 1.6, 1 / 1.3)
UNET_MEMORY = 1.0


def contenders(options):
    """{name: (command, extra environment)}."""
    size = ["--resolution", options.resolution, "--batch", options.batch, "--threads", options.threads,
            "--precision", options.precision]
    size += ["--lora", options.lora] if options.lora else []
    size += ["--unet"] if options.unet else []
    size += ["--ema"] if options.ema else []
    old = [sys.executable, OLD_STEP, options.checkpoint, *size, "--steps", options.steps + options.warm_up]
    old += ["--gradient-checkpointing"] if options.old_checkpointing else []
    ours = [options.worker, "bench", "step", options.checkpoint, *size, "--steps", options.steps, "--warm-up",
            options.warm_up, "--output", "json"]
    preload = {"LD_PRELOAD": str(options.tcmalloc)} if options.tcmalloc else {}
    return {
        "ours": (ours, {}),
        "as it is": (old, {}),
        "tuned" if options.tcmalloc else "tuned, no tcmalloc": ([*old, "--channels-last"], preload),
    }


def machine(summaries, steps):
    """What the worker's summaries say together: the best rates of all rounds, beside the steps of all rounds."""
    best = lambda key: max(summary[key] for summary in summaries)
    convolution, product = best("convolution_flops_per_second"), best("product_flops_per_second")
    shortest = summaries[0]["flop"] / max(convolution, product)
    return {
        "flop": summaries[0]["flop"],
        "convolution_flops_per_second": convolution,
        "product_flops_per_second": product,
        "copy_bytes_per_second": best("copy_bytes_per_second"),
        "of_roofline": shortest / statistics.median(steps),
        "of_roofline_by_minimum": shortest / min(steps),
        "page_faults": statistics.median(summary["page_faults"] for summary in summaries),
        "involuntary_switches": statistics.median(summary["involuntary_switches"] for summary in summaries),
    }


def judge(options, instructions, times, found, peaks):
    """Prints each bound; all of them."""
    by_instructions, otherwise = ((LORA_BOUNDS, LORA_WITHOUT_AMX) if options.lora else
                                  (UNET_BOUNDS, UNET_WITHOUT_AMX) if options.unet else (BOUNDS, WITHOUT_AMX))
    of_old, of_tuned = by_instructions.get(instructions, otherwise) if options.precision == "bf16" else otherwise
    tuned = next(name for name in times if name.startswith("tuned"))
    bounds = {"as it is": options.max_ratio or of_old, tuned: options.max_ratio_tuned or of_tuned}
    judged = [turns.judged(f"ours of {name}, by {way}", ratio, bound)
              for name, bound in bounds.items()
              for way, ratio in zip(("medians", "minima"), turns.ratios(times["ours"], times[name]))]
    if options.lora or options.unet:
        most = LORA_MEMORY if options.lora else UNET_MEMORY
        judged.append(turns.judged("peak memory of that as it is", peaks["ours"] / peaks["as it is"], most))
        return judged
    judged.append(turns.judged("of the roofline, by medians", found["of_roofline"], options.min_roofline, at_most=False))
    judged.append(turns.judged("peak private memory, GB", peaks["ours"] / 1e9, options.max_memory))
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
    parser.add_argument("--threads", type=int, default=turns.physical_cores(), help="default: one a physical core")
    turns.add_precision(parser, "; in fp32 the bounds are those without AMX")
    parser.add_argument("--lora", type=int, metavar="RANK", help="a LoRA's step instead of textual inversion's")
    parser.add_argument("--unet", action="store_true", help="the whole UNet's step instead of textual inversion's")
    parser.add_argument("--ema", action="store_true", help="of the whole UNet: with an average of the weights")
    parser.add_argument("--old-checkpointing", action="store_true", help="of the whole UNet: the script's gradient checkpointing")
    parser.add_argument("--max-ratio", type=float, help="ours of the step as it is [default: 1/6 with AMX, else 0.3]")
    parser.add_argument("--max-ratio-tuned", type=float, help="ours of the tuned one [default: 1/3.5 with AMX, else 0.4]")
    parser.add_argument("--min-roofline", type=float, default=0.4, help="the step's work at the best rate, of the step")
    parser.add_argument("--max-memory", type=float, default=4.0, help="private, in GB")
    parser.add_argument("--json", type=Path, default=HERE.parent.parent / "target/bench.json")
    options = parser.parse_args()
    for name in ("resolution", "batch", "rounds", "steps", "warm_up", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}, allowed is 1 and more")

    times, lines = turns.in_turns(contenders(options), options.rounds, "step_seconds", options.warm_up)
    peaks = {name: max(row[key] for rows in each for row in rows
                       for key in ("peak_private_bytes", "peak_resident_bytes") if key in row)
             for name, each in lines.items()}
    instructions = lines["ours"][0][0]["matrix_instructions"]
    found = machine([rows[-1] for rows in lines["ours"]], times["ours"])
    what = (f"LoRA of rank {options.lora}" if options.lora else
            f"whole UNet{' with EMA' * options.ema}" if options.unet else "textual inversion")
    print(f"{what}, {options.resolution} px, batch {options.batch}, {options.precision} ({instructions}), {options.threads} threads, "
          f"{options.rounds} rounds of {options.steps} steps (peak: ours private memory, the others resident)")
    turns.print_table(times, "as it is", {"peak GB": {name: f"{peak / 1e9:.2f}" for name, peak in peaks.items()}})
    print(f"work of a step {found['flop'] / 1e12:.3f} TFLOP; this machine at best {found['convolution_flops_per_second'] / 1e12:.3f} "
          f"TFLOP/s convolution, {found['product_flops_per_second'] / 1e12:.3f} TFLOP/s product, "
          f"{found['copy_bytes_per_second'] / 1e9:.1f} GB/s copy; {found['page_faults']:.0f} page faults a step")
    judged = judge(options, instructions, times, found, peaks)
    ok = all(bound["met"] for bound in judged)
    turns.write(options.json, {
        "lora": options.lora, "unet": options.unet, "resolution": options.resolution, "batch": options.batch, "threads": options.threads, "rounds": options.rounds,
        "precision": options.precision,
        "matrix_instructions": instructions, "step_seconds": times, "peak_bytes": peaks, "machine": found,
        "bounds": judged, "ok": ok,
    })
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
