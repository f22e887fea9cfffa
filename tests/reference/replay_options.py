#!/usr/bin/env python3
"""Train with every option of the optimizer, the schedule and the loss, and compare with diffusers and PyTorch in fp32.

usage: replay_options.py [--ringtune target/release/ringtune] [--only WORD] [--keep DIR]

Each row of the table that it prints is a job of a few steps on a checkpoint of random weights (made where there is
none), with a trace that replay_trace.py computes again: see there for what is compared. The figures are the worst
relative errors over all steps; each may be at most 1e-4.

  loss, gradient   each microbatch's, from the same weights, latents, noise and tokens
  update           what the optimizer made of the step's gradient
  rate             the learning rate against diffusers.optimization.get_scheduler, or against AUTOMATIC1111's rule

Exit code 0 when all rows hold, 1 when one does not. Run it with the python that setup.sh prints.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
BOUND = 1e-4
STEPS = 6

JOB = """
kind = "textual_inversion"
name = "replay"
[model]
base = {checkpoint}
[data]
images = {images}
[train]
placeholder_token = "<green-star>"
initializer_token = "star"
templates = ["a photo of a {{}}", "a rendering of a {{}}"]
resolution = 64
train_batch_size = 4
max_train_steps = {steps}
learning_rate = 0.005
lr_warmup_steps = 0
num_vectors = 2
seed = 7
[cluster]
threads_per_rank = 1
[debug]
trace_dir = "trace"
"""

# checkpoint -> options of [train], of one job each. The first is what the others are compared with by eye.
CASES = {
    "tiny15": [
        {},
        {"lr_scheduler": "linear", "lr_warmup_steps": 2},
        {"lr_scheduler": "cosine", "lr_warmup_steps": 2},
        {"lr_scheduler": "cosine_with_restarts", "lr_num_cycles": 2},
        {"lr_scheduler": "polynomial", "lr_warmup_steps": 2},
        {"lr_scheduler": "constant_with_warmup", "lr_warmup_steps": 3},
        {"learning_rates": "0.005:2, 1e-3:5, 1e-4"},
        {"learning_rates": "0.005:1, 1e-3", "scale_lr": True, "gradient_accumulation_steps": 2},
        {"scale_lr": True, "lr_scheduler": "linear", "gradient_accumulation_steps": 2},
        {"adam_beta1": 0.7},
        {"adam_beta2": 0.9},
        {"adam_weight_decay": 0.3},
        {"adam_epsilon": 1e-3},
        {"max_grad_norm": 0.02},
        {"snr_gamma": 5.0},
        {"noise_offset": 0.3},
        {"snr_gamma": 1.0, "noise_offset": 0.3, "max_grad_norm": 0.02, "adam_beta1": 0.8, "lr_scheduler": "cosine"},
    ],
    "tiny2": [
        {},
        {"snr_gamma": 5.0},
        {"noise_offset": 0.3},
        {"rescale_betas_zero_snr": True},
        {"rescale_betas_zero_snr": True, "snr_gamma": 5.0},
    ],
}


def shown(options):
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in options.items()) or "(defaults)"


def train(ringtune, checkpoint, options, folder):
    """Runs the job; its trace is in folder/trace."""
    folder.mkdir(parents=True)
    images = json.dumps(str(REPOSITORY / "tests/fixtures/concepts/green-star"))
    job = JOB.format(checkpoint=json.dumps(str(checkpoint)), images=images, steps=STEPS)
    if "learning_rates" in options:
        job = job.replace("learning_rate = 0.005\n", "")
    (folder / "job.toml").write_text(job)
    settings = [word for key, value in options.items() for word in ("--set", f"train.{key}={json.dumps(value)}")]
    command = [ringtune, "run", folder / "job.toml", "-o", folder / "out", *settings]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {shown(options)}: the job failed:\n{done.stderr}")


def arguments(options):
    """What replay_trace.py has to know of the job."""
    given = ["--lr-scheduler", options.get("lr_scheduler", "constant"), "--max-train-steps", str(STEPS),
             "--lr-warmup-steps", str(options.get("lr_warmup_steps", 0)), "--learning-rate", "0.005",
             "--lr-num-cycles", str(options.get("lr_num_cycles", 1)), "--max-update-error", str(BOUND)]
    if options.get("scale_lr"):
        given += ["--lr-scale", str(4 * options.get("gradient_accumulation_steps", 1))]
    if options.get("rescale_betas_zero_snr"):
        given += ["--rescale-betas-zero-snr"]
    given += ["--betas", str(options.get("adam_beta1", 0.9)), str(options.get("adam_beta2", 0.999))]
    names = {"adam_weight_decay": "--weight-decay", "adam_epsilon": "--epsilon", "max_grad_norm": "--max-grad-norm",
             "snr_gamma": "--snr-gamma", "noise_offset": "--noise-offset", "learning_rates": "--learning-rates"}
    return given + [word for key, name in names.items() if key in options for word in (name, str(options[key]))]


def replay(checkpoint, options, folder):
    """replay_trace.py's summary."""
    command = [sys.executable, HERE / "replay_trace.py", folder / "trace", checkpoint, *arguments(options)]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        sys.exit(f"error: {shown(options)}: the replay failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ringtune", type=Path, default=REPOSITORY / "target/release/ringtune")
    parser.add_argument("--only", default="", help="only jobs with this in their options")
    parser.add_argument("--keep", type=Path, help="where to leave jobs and traces: a folder that is not there yet")
    options = parser.parse_args()
    goldens = subprocess.run([HERE / "ensure.sh"], capture_output=True, text=True, check=True)
    checkpoints = Path(goldens.stdout.splitlines()[-1])
    failed = 0
    print("| Checkpoint | Options | Loss | Gradient | Update | Rate | |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        for name, cases in CASES.items():
            for number, case in enumerate(case for case in cases if options.only in shown(case)):
                folder = root / f"{name}-{number:02}"
                train(options.ringtune, checkpoints / name, case, folder)
                found = replay(checkpoints / name, case, folder)
                keys = ("loss_error_worst", "grad_error_worst", "update_error_worst", "rate_error_worst")
                # Written so that NaN fails it.
                holds = found["ok"] and found["steps"] == STEPS and all(found[key] <= BOUND for key in keys)
                holds = holds and ("max_grad_norm" not in case or found["clipped_steps"] > 0)
                failed += not holds
                verdict = "same" if holds else f"DIFFERENT: {', '.join(found['failed']) or found}"
                figures = " | ".join(f"{found[key]:.0e}" for key in keys)
                print(f"| {name} | {shown(case)} | {figures} | {verdict} |", flush=True)
    print(f"\n{failed} of the jobs are not the same" if failed else "\nall are the same")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
