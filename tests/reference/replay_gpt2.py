#!/usr/bin/env python3
"""What a gpt2_finetune job learns, computed again by transformers' GPT-2 and nanoGPT's recipe.

usage: replay_gpt2.py loss FOLDER VAL.BIN --block N --batch N --iters N --seed N
           prints the mean loss of a model on the windows that a job validates on
       replay_gpt2.py train OUT TOKENS START.safetensors --state-at STEP [--autocast | --exact] [--threads N] [--also OUT...]
           takes the steps of a job again. OUT: what the job left, with a checkpoint after STEP; TOKENS: its folder of
           tokens; START: its model before the first step. Prints a JSON object: the losses, and how far each tensor of
           the state after STEP is from the checkpoint's, relative to its own norm. --exact: in fp64. --also: what the same job left with
           another gpt2.exchange or another number of workers, of which it says the same

The windows are drawn as docs/gpt2.md has it: Philox4x32-10 of (seed, purpose 16, step, sample). The optimizer is that of
github.com/karpathy/nanoGPT, model.py, configure_optimizers, and train.py.
"""

import argparse
import csv
import json
import math
import pathlib
import sys
import tomllib

import numpy
import torch
import torch.nn.functional as functional
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

WINDOWS = 16


def philox(key, counter):
    """Salmon et al. 2011, ten rounds of Philox4x32."""
    key, counter = list(key), list(counter)
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * counter[0], 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * counter[2], 1 << 32)
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B9) % (1 << 32), (key[1] + 0xBB67AE85) % (1 << 32)]
    return counter


def start_of(seed, step, sample, bound):
    """Lemire's unbiased number below a bound, from the stream's first words."""
    words, number = [], 0
    while True:
        if not words:
            high = (step >> 32) & 0xFFFFFF | WINDOWS << 24
            words = philox([seed % (1 << 32), seed >> 32], [number, sample, step % (1 << 32), high])
            number += 1
        x = words[0] | words[1] << 32
        words = words[2:]
        product = x * bound
        if product % (1 << 64) >= (-bound) % (1 << 64) % bound:
            return product >> 64


class Windows:
    def __init__(self, path, block, batch, seed):
        self.tokens = numpy.fromfile(path, dtype=numpy.uint16).astype(numpy.int64)
        self.block, self.batch, self.seed = block, batch, seed

    def of(self, step, microbatch):
        bound = len(self.tokens) - self.block
        samples = range(microbatch * self.batch, (microbatch + 1) * self.batch)
        starts = [start_of(self.seed, step, sample, bound) for sample in samples]
        take = lambda offset: torch.tensor(numpy.stack([self.tokens[s + offset : s + offset + self.block] for s in starts]))
        return take(0), take(1)


def loss_of(model, inputs, targets):
    logits = model(inputs).logits
    kind = torch.promote_types(logits.dtype, torch.float32)
    return functional.cross_entropy(logits.view(-1, logits.size(-1)).to(kind), targets.view(-1))


def loss(arguments):
    model = GPT2LMHeadModel.from_pretrained(arguments.folder, attn_implementation="eager").eval()
    windows = Windows(arguments.tokens, arguments.block, arguments.batch, arguments.seed)
    with torch.no_grad():
        losses = [loss_of(model, *windows.of(0, number)).item() for number in range(arguments.iters)]
    print(sum(losses) / len(losses))


def learning_rate(options, step, total):
    it, peak, least = step - 1, options["learning_rate"], options["min_lr"]
    if not options["decay_lr"]:
        return peak
    end = options["lr_decay_iters"] or total
    if it < options["warmup_iters"]:
        return peak * (it + 1) / (options["warmup_iters"] + 1)
    if it >= end:
        return least
    share = (it - options["warmup_iters"]) / (end - options["warmup_iters"])
    return least + 0.5 * (1 + math.cos(math.pi * share)) * (peak - least)


def train(arguments):
    out = pathlib.Path(arguments.out)
    job = tomllib.loads((out / "job.toml").read_text())
    options, cluster = job["gpt2"], job["cluster"]
    outs = [out, *map(pathlib.Path, arguments.also)]
    for other in outs[1:]:
        theirs = tomllib.loads((other / "job.toml").read_text())
        if theirs["gpt2"] | {"exchange": 0} != options | {"exchange": 0} or theirs["cluster"] != cluster:
            sys.exit(f"{other}/job.toml: another job than {out}/job.toml")
    config = GPT2Config.from_json_file(out / "config.json")
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    config._attn_implementation = "eager" if not arguments.autocast else "sdpa"
    model = GPT2LMHeadModel(config).train()
    model.load_state_dict(load_file(arguments.start), strict=False)
    model.tie_weights()
    if arguments.exact:
        model.double()
    # nanoGPT's groups: matrices decay, vectors do not.
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": options["weight_decay"]}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options["learning_rate"], betas=(options["beta1"], options["beta2"]))
    windows = Windows(pathlib.Path(arguments.tokens) / "train.bin", options["block_size"], options["batch_size"], options["seed"])
    total = options["max_iters"]
    microbatches = cluster["world_size"] * options["gradient_accumulation_steps"]
    losses = []
    for step in range(1, total + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(options, step, total)
        mean = 0.0
        for microbatch in range(microbatches):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments.autocast):
                one = loss_of(model, *windows.of(step, microbatch)) / microbatches
            one.backward()
            mean += one.item()
        if options["grad_clip"] > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), options["grad_clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(mean)
        if step == arguments.state_at:
            far = [distances(model, optimizer, out, step) for out in outs]
    jobs = [{"job_losses": losses_of(out), "distances": far} for out, far in zip(outs, far)]
    print(json.dumps({"losses": losses, **jobs[0], "also": jobs[1:]}))


def losses_of(out):
    with open(out / "metrics.csv", newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def distances(model, optimizer, out, step):
    """Of each tensor of the state, as a share of its norm."""
    names = dict(model.named_parameters())
    found = {}
    with safe_open(out / f"checkpoint-{step}.safetensors", "pt") as checkpoint:
        for key in checkpoint.keys():
            for prefix, of in [
                ("model.", lambda p: p),
                ("adamw.mean.", lambda p: optimizer.state[p]["exp_avg"]),
                ("adamw.square.", lambda p: optimizer.state[p]["exp_avg_sq"]),
            ]:
                if key.startswith(prefix):
                    ours = checkpoint.get_tensor(key).double()
                    theirs = of(names[key[len(prefix) :]]).detach().double()
                    if key.endswith("attn.c_attn.bias"):
                        # What is added to all keys a softmax does not see: that third's gradient is zero but for
                        # rounding, of which AdamW makes steps of full length.
                        ours, theirs = (torch.cat([t.chunk(3)[0], t.chunk(3)[2]]) for t in (ours, theirs))
                    found[key] = ((ours - theirs).norm() / theirs.norm().clamp_min(1e-30)).item()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("loss")
    one.add_argument("folder")
    one.add_argument("tokens")
    for name in ["block", "batch", "iters", "seed"]:
        one.add_argument(f"--{name}", type=int, required=True)
    one.set_defaults(run=loss)
    other = commands.add_parser("train")
    other.add_argument("out")
    other.add_argument("tokens")
    other.add_argument("start")
    other.add_argument("--state-at", type=int, required=True)
    precision = other.add_mutually_exclusive_group()
    precision.add_argument("--autocast", action="store_true")
    precision.add_argument("--exact", action="store_true")
    other.add_argument("--threads", type=int, default=1)
    other.add_argument("--also", nargs="+", default=[])
    other.set_defaults(run=train)
    arguments = parser.parse_args()
    torch.set_num_threads(getattr(arguments, "threads", 1))
    arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
