#!/usr/bin/env python3
"""Take the steps of a job of kind "lora" or "unet_finetune" again in diffusers and PEFT, each from the state before it, and compare
what comes of it.

usage: replay_network.py OUT TRACE CHECKPOINT [--bound 1e-4 | --free]

OUT is what a job left that had train.checkpointing_steps = 1 and mixed_precision = "no", TRACE its debug.trace_dir, CHECKPOINT the
folder that it trained on. Step s begins with the state of checkpoint s - 1 (factors, moments, average), has the traced inputs and
learning rates, and ends with a state that is compared with that of checkpoint s. Masks of dropout are restated here.

With --free only the first checkpoint counts: the reference goes on from it by its own states to the last step of metrics.csv, and the
mean losses of both over all of these steps are compared. They may differ by 2%.

Prints a JSON object: the steps, and by kind of tensor the largest of max|difference| / max|reference| of all tensors and steps. Exit
code 1 where one is above --bound.
"""
import quiet  # noqa: F401

import argparse
import csv
import json
import sys
import tomllib
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers.training_utils import EMAModel
from peft import LoraConfig
from safetensors import safe_open
from safetensors.torch import load_file

from goldens.dropout import named_mask
from textual_inversion import Reference, min_snr_weights

# worker/model/src/dropout.rs.
ADAPTERS = 22


class Masked(torch.nn.Module):
    """In the place of PEFT's dropout: what a mask says that is known from the place."""

    def __init__(self, place, layer, rate):
        super().__init__()
        self.place, self.layer, self.rate = place, layer, rate

    def forward(self, x):
        flat = x.permute(0, 2, 3, 1) if x.dim() == 4 else x
        samples, width = flat.shape[0], flat.shape[-1]
        rows = flat.numel() // samples // width
        mask = named_mask({**self.place, "rate": self.rate}, samples, ADAPTERS, 2 * self.layer, rows, width).view(flat.shape)
        return x * (mask.permute(0, 3, 1, 2) if x.dim() == 4 else mask)


def drop_rows(place, layer, rate):
    def hook(module, inputs, hidden):
        samples = hidden.shape[0]
        width = hidden.shape[1] if hidden.dim() == 4 else hidden.shape[-1]
        mask = named_mask({**place, "rate": rate}, samples, ADAPTERS, 2 * layer + 1, 1, width)
        return hidden * mask.view(samples, width, 1, 1) if hidden.dim() == 4 else hidden * mask.view(samples, *[1] * (hidden.dim() - 2), width)

    return hook


class Words(torch.nn.Module):
    """A table whose last rows are learned."""

    def __init__(self, table, rows):
        super().__init__()
        self.table, self.rows = table, torch.nn.Parameter(rows)

    def forward(self, ids):
        return F.embedding(ids, torch.cat([self.table, self.rows]))


# The parameter of learned rows.
LEARNED = "text_encoder.text_model.embeddings.token_embedding.learned"


class Job:
    def __init__(self, out, trace, checkpoint, first):
        self.out, self.trace = out, trace
        job = tomllib.loads((out / "job.toml").read_text())
        self.train, self.lora, self.cluster = job["train"], job.get("lora", {}), job["cluster"]
        self.reference = Reference(checkpoint, 0, "no")
        self.reference.token_table.requires_grad_(False)
        self.microbatches = self.cluster["world_size"] * self.train["gradient_accumulation_steps"]
        self.place = {}
        self.factors = {}
        if job["kind"] == "unet_finetune":
            self.reference.unet.requires_grad_(False)
            trained = load_file(out / f"checkpoint-{first}.safetensors")
            self.factors = {name: parameter for name, parameter in self.reference.unet.named_parameters() if f"model.{name}" in trained}
            return
        with safe_open(out / "pytorch_lora_weights.safetensors", "pt") as file:
            adapters = json.loads(file.metadata()["lora_adapter_metadata"])
        traced = next(trace.glob("step-*-mb-0000.safetensors"))
        with safe_open(traced, "pt") as file:
            self.layers = json.loads(file.metadata()["about"])["layers"]
        rows = self.state(first).get(f"model.{LEARNED}")
        if rows is not None:
            table = self.reference.token_table.detach()
            words = Words(table, rows.clone())
            self.reference.text_encoder.set_input_embeddings(words)
        for component, network in (("unet", self.reference.unet), ("text_encoder", self.reference.text_encoder)):
            own = {key.removeprefix(f"{component}."): value for key, value in adapters.items() if key.startswith(f"{component}.")}
            if own:
                self.adapt(component, network, own)
        if rows is not None:
            self.factors[LEARNED] = words.rows

    def adapt(self, component, network, own):
        network.add_adapter(LoraConfig(**own))
        for name, module in network.named_modules():
            if not hasattr(module, "lora_A"):
                continue
            inner = "" if component == "unet" or name.startswith("text_model.") else "text_model."
            layer = f"{component}.{inner}{name}"
            number = self.layers.index(layer)
            if self.lora.get("dropout"):
                module.lora_dropout["default"] = Masked(self.place, number, self.lora["dropout"])
            if self.lora.get("rank_dropout"):
                module.lora_A["default"].register_forward_hook(drop_rows(self.place, number, self.lora["rank_dropout"]))
            self.factors[f"{layer}.lora_A.weight"] = module.lora_A["default"].weight
            self.factors[f"{layer}.lora_B.weight"] = module.lora_B["default"].weight
            if "default" in getattr(module, "lora_magnitude_vector", {}):
                self.factors[f"{layer}.lora_magnitude_vector"] = module.lora_magnitude_vector["default"].weight

    def state(self, step):
        return load_file(self.out / f"checkpoint-{step}.safetensors")

    def loss(self, step, microbatch):
        path = self.trace / f"step-{step:06}-mb-{microbatch:04}.safetensors"
        inputs = load_file(path)
        batch = inputs["latents"].shape[0]
        self.place.update(seed=self.train["seed"], step=step, first_sample=microbatch * batch)
        scheduler = self.reference.scheduler
        latents, noise, timesteps = inputs["latents"], inputs["noise"], inputs["timesteps"]
        noisy = scheduler.add_noise(latents, noise + inputs.get("perturbation", 0.0), timesteps)
        hidden = self.reference.text_encoder(inputs["input_ids"])[0]
        predicted = self.reference.unet(noisy, timesteps, hidden).sample
        velocity = scheduler.config.prediction_type == "v_prediction"
        target = scheduler.get_velocity(latents, noise, timesteps) if velocity else noise
        errors = F.mse_loss(predicted, target, reduction="none")
        if "loss_mask" in inputs:
            errors = errors * inputs["loss_mask"].unsqueeze(1)
        weights = inputs.get("sample_weights", torch.ones(batch))
        if self.train.get("snr_gamma"):
            weights = weights * min_snr_weights(scheduler, timesteps, self.train["snr_gamma"])
        loss = (errors.mean(dim=[1, 2, 3]) * weights).mean()
        self.losses.append(loss.item())
        return loss

    def rates(self, step):
        with safe_open(self.trace / f"step-{step:06}-mb-0000.safetensors", "pt") as file:
            return json.loads(file.metadata()["about"])["rates"]

    def replay(self, step, before=None):
        """The state after a step, from that before it: by default ours."""
        before, train = before or self.state(step - 1), self.train
        self.losses = []
        groups = {"unet": [], "text_encoder": [], "words": []}
        for name, factor in self.factors.items():
            factor.data.copy_(before[f"model.{name}"].view(factor.shape))
            factor.grad = None
            factor.requires_grad_(True)
            component = "words" if name == LEARNED else name.split(".")[0]
            groups.get(component, groups["unet"]).append(factor)
        if train.get("exchange") == "local":
            return self.averaged(self.replay_round(step, before), step, before)
        rates = dict(zip(groups, self.rates(step)))
        optimizer = self.adamw([{"params": own, "lr": rates[component]} for component, own in groups.items() if own])
        for name, factor in self.factors.items():
            optimizer.state[factor] = {
                "step": torch.tensor(float(step - 1)),
                "exp_avg": before[f"adamw.mean.{name}"].view(factor.shape).clone(),
                "exp_avg_sq": before[f"adamw.square.{name}"].view(factor.shape).clone(),
            }
        for microbatch in range(self.microbatches):
            (self.loss(step, microbatch) / self.microbatches).backward()
        if train["max_grad_norm"] > 0:
            torch.nn.utils.clip_grad_norm_(list(self.factors.values()), train["max_grad_norm"])
        optimizer.step()
        after = {}
        for name, factor in self.factors.items():
            state = optimizer.state[factor]
            after[f"model.{name}"], after[f"adamw.mean.{name}"] = factor.detach(), state["exp_avg"]
            after[f"adamw.square.{name}"] = state["exp_avg_sq"]
        return self.averaged(after, step, before)

    def adamw(self, groups):
        train = self.train
        betas = (train["adam_beta1"], train["adam_beta2"])
        return torch.optim.AdamW(groups, betas=betas, weight_decay=train["adam_weight_decay"], eps=train["adam_epsilon"])

    def replay_round(self, step, before):
        """DiLoCo: each microbatch's replica takes its steps with moments of its own; SGD moves by the mean of how far they came."""
        train, factors = self.train, self.factors
        first = {name: factor.detach().clone() for name, factor in factors.items()}
        came = {name: torch.zeros_like(factor) for name, factor in first.items()}
        for microbatch in range(self.microbatches):
            for name, factor in factors.items():
                factor.data.copy_(first[name])
            # The rate is that of the round's number, for all of its steps.
            inner = self.adamw([{"params": list(factors.values()), "lr": self.rates(step)[0]}])
            for local in range((step - 1) * train["local_steps"] + 1, step * train["local_steps"] + 1):
                inner.zero_grad()
                self.loss(local, microbatch).backward()
                if train["max_grad_norm"] > 0:
                    torch.nn.utils.clip_grad_norm_(list(factors.values()), train["max_grad_norm"])
                inner.step()
            for name, factor in factors.items():
                came[name] += (first[name] - factor.detach()) / self.microbatches
        outer = torch.optim.SGD(
            list(factors.values()), lr=train["outer_learning_rate"], momentum=train["outer_momentum"], nesterov=True)
        for name, factor in factors.items():
            factor.data.copy_(first[name])
            factor.grad = came[name]
            outer.state[factor]["momentum_buffer"] = before[f"outer.momentum.{name}"].view(factor.shape).clone()
        outer.step()
        after = {f"model.{name}": factor.detach() for name, factor in factors.items()}
        momentum = {f"outer.momentum.{name}": outer.state[factor]["momentum_buffer"] for name, factor in factors.items()}
        return after | momentum

    def averaged(self, after, step, before):
        """With the average of the parameters, where one is kept."""
        train = self.train
        if train.get("use_ema"):
            average = EMAModel(
                [before[f"average.{name}"].view(factor.shape) for name, factor in self.factors.items()],
                decay=train.get("ema_decay", 0.9999), update_after_step=train.get("ema_update_after_step", 0),
            )
            average.optimization_step = step - 1
            average.step(list(self.factors.values()))
            for name, shadow in zip(self.factors, average.shadow_params):
                after[f"average.{name}"] = shadow
        return after


def go_on(job, first):
    """Both means of the losses of the steps behind the first checkpoint."""
    with open(job.out / "metrics.csv") as file:
        ours = {int(line["step"]): float(line["loss"]) for line in csv.DictReader(file)}
    state, theirs = job.state(first), {}
    for step in range(first + 1, max(ours) + 1):
        state = job.replay(step, state)
        theirs[step] = sum(job.losses) / len(job.losses)
    means = [sum(losses[step] for step in theirs) / len(theirs) for losses in (ours, theirs)]
    difference = abs(means[0] - means[1]) / means[1]
    print(json.dumps({"ok": difference <= 0.02, "steps": len(theirs), "ours": means[0], "theirs": means[1], "difference": difference}))
    return 0 if difference <= 0.02 else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("trace", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--bound", type=float, default=1e-4)
    parser.add_argument("--free", action="store_true")
    options = parser.parse_args()
    checkpoints = [int(path.stem.split("-")[1]) for path in options.out.glob("checkpoint-*.safetensors")]
    job, last = Job(options.out, options.trace, options.checkpoint, min(checkpoints)), max(checkpoints)
    if options.free:
        return go_on(job, min(checkpoints))
    worst, steps = {}, range(2, last + 1)
    for step in steps:
        ours, after = job.state(step), job.replay(step)
        known = {name for name in ours if name.split(".")[0] in ("model", "adamw", "outer", "average")}
        if known != set(after):
            sys.exit(f"checkpoint {step} has other tensors than the reference: {sorted(known ^ set(after))[:4]}")
        for name, reference in after.items():
            largest = reference.abs().max().item()
            difference = (ours[name].view(reference.shape) - reference).abs().max().item()
            if name.startswith("outer.momentum."):
                # It is how far a parameter came, a difference of two numbers, and has the last bits of these.
                moved = after[f"model.{name.removeprefix('outer.momentum.')}"].abs().max().item()
                difference = max(0.0, difference - 2 * torch.finfo(torch.float32).eps * moved)
            error = difference / largest if largest else difference
            kind = ".".join(name.split(".")[:2 if name.startswith(("adamw", "outer")) else 1])
            kind += ".text_encoder" if ".text_encoder." in name else ".unet"
            worst[kind] = max(worst.get(kind, (0.0, "")), (error, f"step {step} {name}"))
    ok = bool(worst) and all(error <= options.bound for error, _ in worst.values())
    print(json.dumps({"ok": ok, "steps": len(steps), "tensors": len(job.factors), "worst": worst}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
