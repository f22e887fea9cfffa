#!/usr/bin/env python3
"""Trains a GPT-2 from scratch as github.com/karpathy/nanoGPT does, with the settings of a gpt2_finetune job.

usage: nanogpt_train.py train JOB.toml TOKENS OUT [--seed N] [--threads N]
           JOB.toml: the job.toml that a job left, with all its settings. Saves the model into OUT
       nanogpt_train.py loss FOLDER VAL.BIN [--block N]
           prints the mean loss of a saved model over all of a file's tokens, in windows that do not overlap

The model, how it is initialised, the optimizer and what it computes in (fp32, as nanoGPT on a CPU) are those of nanoGPT's
model.py and train.py; the model is built of transformers' layers. All draws are torch's own: nothing but the settings and
the tokens is the job's, so that what both learn is comparable, and nothing is equal to the bit.
"""

import argparse
import math
import pathlib
import tomllib

import numpy
import torch
import torch.nn.functional as functional
from replay_gpt2 import learning_rate, loss_of
from transformers import GPT2Config, GPT2LMHeadModel


def tokens_of(path):
    return torch.from_numpy(numpy.fromfile(path, dtype="<u2").astype(numpy.int64))


def new_model(config, options):
    """model.py, GPT.__init__ and _init_weights. Without biases, transformers' stay 0 and are not trained."""
    # nanoGPT's activation is the exact one, and it has as many positions as a window has tokens.
    config.activation_function, config.n_positions = "gelu", options["block_size"]
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    model = GPT2LMHeadModel(config).train()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
            parameter.requires_grad = options["bias"]
        elif parameter.dim() >= 2:
            deep = name.endswith("c_proj.weight")
            torch.nn.init.normal_(parameter, 0.0, 0.02 / math.sqrt(2 * config.n_layer) if deep else 0.02)
    return model


def train(arguments):
    torch.manual_seed(arguments.seed)
    job = tomllib.loads(pathlib.Path(arguments.job).read_text())
    options, cluster = job["gpt2"], job["cluster"]
    config = GPT2Config.from_json_file(pathlib.Path(job["model"]["base"]) / "config.json")
    for name in ["n_layer", "n_head", "n_embd"]:
        setattr(config, name, options[name] or getattr(config, name))
    model = new_model(config, options)
    # configure_optimizers: matrices decay, vectors do not.
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": options["weight_decay"]},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=options["learning_rate"], betas=(options["beta1"], options["beta2"]))
    tokens, block = tokens_of(pathlib.Path(arguments.tokens) / "train.bin"), options["block_size"]
    # The mean over processes and microbatches of equal size is that over all of a step's windows.
    windows = options["batch_size"] * options["gradient_accumulation_steps"] * cluster["world_size"]
    for step in range(1, options["max_iters"] + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(options, step, options["max_iters"])
        starts = torch.randint(len(tokens) - block, (windows,))
        window = torch.stack([tokens[start : start + block + 1] for start in starts])
        loss = loss_of(model, window[:, :-1], window[:, 1:].contiguous())
        loss.backward()
        if options["grad_clip"] > 0:
            torch.nn.utils.clip_grad_norm_(trained, options["grad_clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    model.save_pretrained(arguments.out)


def loss(arguments):
    model = GPT2LMHeadModel.from_pretrained(arguments.folder).eval()
    tokens, block = tokens_of(arguments.tokens), arguments.block or model.config.n_positions
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(tokens) - 1, block):
            window = tokens[start : start + block + 1]
            logits = model(window[None, :-1]).logits[0]
            total += functional.cross_entropy(logits.float(), window[1:], reduction="sum").item()
    print(total / (len(tokens) - 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    training = commands.add_parser("train")
    for name in ["job", "tokens", "out"]:
        training.add_argument(name)
    training.add_argument("--seed", type=int, default=1337)
    training.set_defaults(run=train)
    taking = commands.add_parser("loss")
    taking.add_argument("folder")
    taking.add_argument("tokens")
    taking.add_argument("--block", type=int, default=0)
    taking.set_defaults(run=loss)
    for command in [training, taking]:
        command.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
