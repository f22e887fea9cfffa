#!/usr/bin/env python3
"""Replay a run's trace in diffusers, and compare loss, gradient and optimizer step by step.

usage: replay_trace.py TRACE_DIR CHECKPOINT [--precision no|bf16] [--first-steps N] [--weight-decay 0.01] …

TRACE_DIR is what a job with `[debug] trace_dir` wrote; CHECKPOINT the folder that it trained on. Every microbatch is
computed again from its own traced inputs and from its step's `embeds_before`, so nothing adds up over the steps. The
number of learned vectors is taken from the trace.

Checked, for every step and microbatch (the bounds are options):
  trace       steps 1, 2, …, each with microbatches 0, 1, …, shapes and number formats; `embeds_before` is the step
              before's `embeds_after`, bit for bit; `grad_reduced` is the mean of the microbatches' `grad`
  precision no    loss and gradient: relative error <= 1e-4; gradient's cosine >= 0.99999
  precision bf16  every microbatch's gradient against that of diffusers' fp32: cosine >= 0.999. The ratio of its
              distance from that to the distance of diffusers' own bf16: median <= 1.3, and worst <= 2 for the steps'
              mean gradients. (For a single microbatch the worst may be 3: where diffusers' own rounding errors happen
              to cancel, the ratio is large though our error is usual.) Loss within 1e-2
  optimizer   torch.optim.AdamW, given the traced gradients and learning rates from step 1 on and set to each step's
              `embeds_before`, comes to `embeds_after`: relative error <= 1e-4. With --max-grad-norm it is given what
              torch.nn.utils.clip_grad_norm_ makes of `grad_reduced`, which is traced before that
  noise       with --noise-offset: its channels' means spread as wide as that makes them, within 15%
  rate        with --lr-scheduler or --learning-rates: each step's `lr` is what diffusers' get_scheduler, or the rule of
              AUTOMATIC1111's trainer, gives: relative error <= 1e-6. (It is traced in fp32.)

Prints a JSON summary; exit code 0 when all of it holds, 1 when not, 2 when the trace cannot be read.
Run it with the python that setup.sh prints.
"""
import quiet  # noqa: F401

import argparse
import json
import math
import re
import statistics
import sys
from pathlib import Path

import torch
from diffusers import DDPMScheduler
from diffusers.optimization import get_scheduler
from safetensors.torch import load_file

from textual_inversion import ADAMW, Reference

MICROBATCH_KEYS = {"latents": torch.float32, "noise": torch.float32, "timesteps": torch.int64,
                   "input_ids": torch.int64, "loss": torch.float32, "grad": torch.float32}
STEP_KEYS = {"embeds_before": torch.float32, "embeds_after": torch.float32, "grad_reduced": torch.float32,
             "lr": torch.float32}


class TraceError(Exception):
    """The trace is not what the format says."""


def relative_error(ours, reference):
    """L2 norm of the difference over that of the reference; 0 where both are zero."""
    difference, scale = (ours.double() - reference.double()).norm().item(), reference.double().norm().item()
    return difference / scale if scale else (0.0 if difference == 0 else float("inf"))


def cosine(ours, reference):
    return torch.cosine_similarity(ours.double().flatten(), reference.double().flatten(), dim=0).item()


def load(path, keys):
    tensors = load_file(path)
    if set(tensors) != set(keys):
        raise TraceError(f"{path.name}: keys {sorted(tensors)}, expected {sorted(keys)}")
    for name, dtype in keys.items():
        allowed = (dtype, torch.float64) if name == "lr" else (dtype,)
        if tensors[name].dtype not in allowed:
            raise TraceError(f"{path.name}: {name} is {tensors[name].dtype}, expected {dtype}")
    return tensors


def read_trace(folder, first_steps):
    """[(the step's tensors, [its microbatches' tensors])] in order."""
    names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    steps = [n for n in names if re.fullmatch(r"step-\d{6}\.safetensors", n)]
    strays = [n for n in names if not re.fullmatch(r"step-\d{6}(-mb-\d{4})?\.safetensors", n)]
    if not steps:
        raise TraceError(f"{folder}: no step-000001.safetensors there")
    if strays:
        raise TraceError(f"{folder}: files that do not belong to a trace: {strays}")
    trace = []
    for number, name in enumerate(steps[:first_steps], start=1):
        if name != f"step-{number:06}.safetensors":
            raise TraceError(f"{folder}: step {number} is missing")
        microbatches = [n for n in names if n.startswith(f"step-{number:06}-mb-")]
        if microbatches != [f"step-{number:06}-mb-{i:04}.safetensors" for i in range(len(microbatches))] or not microbatches:
            raise TraceError(f"{folder}: microbatches of step {number}: {microbatches}")
        trace.append((load(folder / name, STEP_KEYS), [load(folder / n, MICROBATCH_KEYS) for n in microbatches]))
    if len({len(microbatches) for _, microbatches in trace}) != 1:
        raise TraceError(f"{folder}: the number of microbatches changes from step to step")
    return trace


def reference(checkpoint, num_vectors, precision, rescale_betas_zero_snr):
    """diffusers' script on the checkpoint; with the betas that the option makes of the checkpoint's own."""
    made = Reference(checkpoint, num_vectors, precision)
    if rescale_betas_zero_snr:
        made.scheduler = DDPMScheduler.from_config(made.scheduler.config, rescale_betas_zero_snr=True)
        assert made.scheduler.alphas_cumprod[-1] == 0
    return made


def compare_microbatches(trace, checkpoint, options):
    """One dictionary of measures for each microbatch."""
    num_vectors, snr_gamma = trace[0][0]["embeds_before"].shape[0], options.snr_gamma
    fp32 = reference(checkpoint, num_vectors, "no", options.rescale_betas_zero_snr)
    bf16 = None
    if options.precision == "bf16":
        bf16 = reference(checkpoint, num_vectors, "bf16", options.rescale_betas_zero_snr)
    for number, (step, microbatches) in enumerate(trace, start=1):
        for index, traced in enumerate(microbatches):
            inputs = {n: traced[n] for n in ("latents", "noise", "timesteps", "input_ids")}
            loss, grad = fp32.microbatch(step["embeds_before"], **inputs, snr_gamma=snr_gamma)
            measures = {
                "step": number, "microbatch": index, "loss": loss.item(),
                "loss_error": relative_error(traced["loss"], loss),
                "grad_error": relative_error(traced["grad"], grad), "grad_cosine": cosine(traced["grad"], grad),
            }
            if bf16:
                own_loss, own_grad = bf16.microbatch(step["embeds_before"], **inputs, snr_gamma=snr_gamma)
                measures["reference_bf16_error"] = relative_error(own_grad, grad)
                measures["reference_bf16_cosine"] = cosine(own_grad, grad)
                measures["reference_bf16_loss_error"] = relative_error(own_loss, loss)
                measures["cosine_to_reference_bf16"] = cosine(traced["grad"], own_grad)
                measures["ratio"] = measures["grad_error"] / max(measures["reference_bf16_error"], 1e-12)
                measures["gradients"] = (traced["grad"], own_grad, grad)
            yield measures


def compare_optimizer(trace, adamw, max_grad_norm):
    """The step before's state held, the mean gradient, and torch's AdamW from each traced state."""
    embeds = trace[0][0]["embeds_before"].clone().requires_grad_(True)
    optimizer = torch.optim.AdamW([embeds], lr=1.0, **adamw)
    previous = None
    for number, (step, microbatches) in enumerate(trace, start=1):
        grads = [m["grad"] for m in microbatches]
        mean = torch.stack(grads).double().mean(dim=0)
        measures = {
            "step": number, "continues": previous is None or torch.equal(previous, step["embeds_before"]),
            "mean_grad_error": relative_error(step["grad_reduced"], mean),
        }
        with torch.no_grad():
            embeds.copy_(step["embeds_before"])
        # A step with a gradient that is not finite is skipped, and AdamW's own count does not move.
        if torch.isfinite(step["grad_reduced"]).all():
            optimizer.param_groups[0]["lr"] = step["lr"].item()
            embeds.grad = step["grad_reduced"].clone()
            if max_grad_norm:
                norm = torch.nn.utils.clip_grad_norm_([embeds], max_grad_norm)
                measures["clipped"] = bool(norm > max_grad_norm)
            optimizer.step()
        measures["embeds_error"] = relative_error(step["embeds_after"], embeds.detach())
        moved = embeds.detach() - step["embeds_before"]
        measures["update_error"] = relative_error(step["embeds_after"] - step["embeds_before"], moved)
        previous = step["embeds_after"]
        yield measures


def diffusers_rates(name, options, steps):
    """The learning rate of each step, by diffusers."""
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=options.learning_rate * options.lr_scale)
    schedule = get_scheduler(name, optimizer, num_warmup_steps=options.lr_warmup_steps,
                             num_training_steps=options.max_train_steps, num_cycles=options.lr_num_cycles)
    rates = []
    for _ in range(steps):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return rates


def piecewise_rates(text, scale, steps):
    """The learning rate of each step, as AUTOMATIC1111's trainer goes through its list: before an update it compares
    the number of updates that are done with where the present rate ends, and when that is reached takes the next."""
    pieces = [piece.split(":") for piece in text.split(",")]
    pieces = iter([(float(rate), int(end[0]) if end and int(end[0]) != -1 else math.inf) for rate, *end in pieces])
    rate, end = next(pieces)
    rates = []
    for updates_done in range(steps):
        if updates_done >= end:
            rate, end = next(pieces)
        rates.append(rate * scale)
    return rates


def rate_errors(trace, options):
    """Each step's error of the traced learning rate; none where the schedule is not told."""
    if options.learning_rates:
        expected = piecewise_rates(options.learning_rates, options.lr_scale, len(trace))
    elif options.lr_scheduler:
        expected = diffusers_rates(options.lr_scheduler, options, len(trace))
    else:
        return None
    return [relative_error(step["lr"], torch.tensor([rate])) for (step, _), rate in zip(trace, expected, strict=True)]


def noise_spread_ratio(trace, noise_offset):
    """The standard deviation of the noise's means over each sample's channels, over what the offset makes it; it
    depends on the sample's size, which differs from bucket to bucket."""
    ratios = []
    for _, microbatches in trace:
        for traced in microbatches:
            noise = traced["noise"].double()
            expected = math.sqrt(noise_offset**2 + 1 / (noise.shape[2] * noise.shape[3]))
            ratios.append(noise.mean(dim=(2, 3)).flatten() / expected)
    return torch.cat(ratios).std().item()


def step_ratios(microbatches):
    """For each step: the ratio of its mean gradient's distance from fp32 to that of diffusers' own bf16."""
    by_step = {}
    for row in microbatches:
        by_step.setdefault(row["step"], []).append(row.pop("gradients"))
    ratios = []
    for step in by_step.values():
        ours, own, exact = (torch.stack(side).double().mean(dim=0) for side in zip(*step))
        ratios.append((ours - exact).norm().item() / max((own - exact).norm().item(), 1e-12))
    return ratios


def judge(microbatches, steps, noise_spread_ratio, rate_errors, options):
    """The summary, and the names of the bounds that do not hold."""
    def worst(rows, key, pick=max):
        values = [row[key] for row in rows]
        # max and min pass over a NaN; it has to show.
        return math.nan if any(math.isnan(value) for value in values) else pick(values)

    summary = {
        "steps": len(steps), "microbatches": len(microbatches),
        "loss_error_worst": worst(microbatches, "loss_error"),
        "grad_error_worst": worst(microbatches, "grad_error"),
        "grad_cosine_worst": worst(microbatches, "grad_cosine", min),
        "mean_grad_error_worst": worst(steps, "mean_grad_error"),
        "embeds_error_worst": worst(steps, "embeds_error"),
        "update_error_worst": worst(steps, "update_error"),
    }
    bounds = {
        "every step continues the one before": all(row["continues"] for row in steps),
        "mean_grad_error": summary["mean_grad_error_worst"] <= 1e-5,
        "embeds_error": summary["embeds_error_worst"] <= options.max_embeds_error,
    }
    if options.precision == "bf16":
        ratios = step_ratios(microbatches)
        summary |= {
            "ratio_median": statistics.median(ratios),
            "ratio_worst": math.nan if any(map(math.isnan, ratios)) else max(ratios),
            "microbatch_ratio_median": statistics.median(row["ratio"] for row in microbatches),
            "microbatch_ratio_worst": worst(microbatches, "ratio"),
            "reference_bf16_error_median": statistics.median(row["reference_bf16_error"] for row in microbatches),
            "reference_bf16_cosine_worst": worst(microbatches, "reference_bf16_cosine", min),
            "reference_bf16_loss_error_worst": worst(microbatches, "reference_bf16_loss_error"),
            "cosine_to_reference_bf16_worst": worst(microbatches, "cosine_to_reference_bf16", min),
        }
        bounds |= {
            "loss_error": summary["loss_error_worst"] <= options.max_bf16_loss_error,
            "grad_cosine": summary["grad_cosine_worst"] >= options.min_bf16_cosine,
            "ratio_median": summary["ratio_median"] <= options.max_ratio_median,
            "ratio_worst": summary["ratio_worst"] <= options.max_ratio_worst,
            "microbatch_ratio_median": summary["microbatch_ratio_median"] <= options.max_ratio_median,
            "microbatch_ratio_worst": summary["microbatch_ratio_worst"] <= options.max_microbatch_ratio_worst,
        }
    else:
        bounds |= {
            "loss_error": summary["loss_error_worst"] <= options.max_error,
            "grad_error": summary["grad_error_worst"] <= options.max_error,
            "grad_cosine": summary["grad_cosine_worst"] >= options.min_cosine,
        }
    if options.max_grad_norm:
        summary["clipped_steps"] = sum(row.get("clipped", False) for row in steps)
    if options.noise_offset:
        summary["noise_spread_ratio"] = noise_spread_ratio
        bounds["noise_spread"] = abs(noise_spread_ratio - 1) <= 0.15
    if rate_errors:
        summary["rate_error_worst"] = worst([{"rate": error} for error in rate_errors], "rate")
        bounds["rate"] = summary["rate_error_worst"] <= 1e-6
    if options.max_update_error is not None:
        bounds["update_error"] = summary["update_error_worst"] <= options.max_update_error
    # A comparison with NaN is false, so that a NaN anywhere fails its bound.
    return summary, [name for name, holds in bounds.items() if not holds]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--precision", choices=("no", "bf16"), default="no", help="the job's mixed_precision")
    parser.add_argument("--first-steps", type=int, help="only so many")
    parser.add_argument("--vectors", type=int, help="fail unless the trace has so many learned vectors")
    parser.add_argument("--weight-decay", type=float, default=ADAMW["weight_decay"])
    parser.add_argument("--betas", type=float, nargs=2, default=ADAMW["betas"])
    parser.add_argument("--epsilon", type=float, default=ADAMW["eps"])
    parser.add_argument("--snr-gamma", type=float, default=0.0, help="the job's snr_gamma")
    parser.add_argument("--max-grad-norm", type=float, default=0.0, help="the job's max_grad_norm")
    parser.add_argument("--noise-offset", type=float, default=0.0, help="the job's noise_offset")
    parser.add_argument("--rescale-betas-zero-snr", action="store_true", help="the job's rescale_betas_zero_snr")
    parser.add_argument("--lr-scheduler", help="the job's lr_scheduler, to check the learning rates by")
    parser.add_argument("--learning-rates", default="", help="the job's learning_rates, in its place")
    parser.add_argument("--learning-rate", type=float, default=0.005)
    parser.add_argument("--lr-scale", type=float, default=1.0, help="what scale_lr multiplies the rate with")
    parser.add_argument("--lr-warmup-steps", type=int, default=0)
    parser.add_argument("--lr-num-cycles", type=int, default=1)
    parser.add_argument("--max-train-steps", type=int, default=0)
    parser.add_argument("--max-update-error", type=float, help="relative error of embeds_after - embeds_before")
    parser.add_argument("--max-error", type=float, default=1e-4)
    parser.add_argument("--min-cosine", type=float, default=0.99999)
    parser.add_argument("--max-embeds-error", type=float, default=1e-4)
    parser.add_argument("--max-bf16-loss-error", type=float, default=1e-2)
    parser.add_argument("--min-bf16-cosine", type=float, default=0.999)
    parser.add_argument("--max-ratio-median", type=float, default=1.3)
    parser.add_argument("--max-ratio-worst", type=float, default=2.0)
    parser.add_argument("--max-microbatch-ratio-worst", type=float, default=3.0)
    parser.add_argument("--details", action="store_true", help="a JSON line for each microbatch and step as well")
    options = parser.parse_args()

    try:
        trace = read_trace(options.trace, options.first_steps)
        vectors = trace[0][0]["embeds_before"].shape[0]
        if options.vectors not in (None, vectors):
            raise TraceError(f"{options.trace}: {vectors} learned vectors, expected {options.vectors}")
    except TraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    adamw = dict(betas=tuple(options.betas), weight_decay=options.weight_decay, eps=options.epsilon)
    microbatches = list(compare_microbatches(trace, options.checkpoint, options))
    steps = list(compare_optimizer(trace, adamw, options.max_grad_norm))
    spread = noise_spread_ratio(trace, options.noise_offset)
    summary, failed = judge(microbatches, steps, spread, rate_errors(trace, options), options)  # Takes the gradients out of the rows.
    if options.details:
        for row in microbatches + steps:
            print(json.dumps(row))
    print(json.dumps({"ok": not failed, "failed": failed, "precision": options.precision, "vectors": vectors, **summary}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
