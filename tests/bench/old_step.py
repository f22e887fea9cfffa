#!/usr/bin/env python3
"""Time the textual-inversion step of diffusers' own script on a checkpoint, part by part.

usage: old_step.py CHECKPOINT [--resolution 512] [--batch 1] [--steps 4] [--threads N] [--channels-last]
                   [--lora RANK | --unet [--ema] [--gradient-checkpointing]]

What Ringtune replaces: textual_inversion.py under accelerate with mixed_precision="bf16", its work for one step and
nothing else (no data loading). The VAE encodes in every step, and AdamW and the restoring of the other rows go over
the whole token table, as in the script. For the tuned figure add --channels-last and run it under
LD_PRELOAD=libtcmalloc_minimal.so.4.

With --lora it is the step of train_text_to_image_lora.py instead: adapters in fp32 beside the UNet's attention, the text encoder in
the precision of the others, and AdamW over the adapters.

With --unet it is that of train_text_to_image.py: all of the UNet in fp32, under autocast, and a clipped gradient.

Prints a JSON line a step with the seconds of its parts and `step_seconds`; last {"peak_resident_bytes"}.
"""
import os

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")

import argparse
import json
import resource
import time
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.training_utils import EMAModel, cast_training_params
from peft import LoraConfig
from transformers import CLIPTextModel

TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Script:
    """The script's models and optimizer after `accelerator.prepare`."""

    def __init__(self, options):
        self.options = options
        self.type = TYPES[options.precision]
        folder = options.checkpoint
        self.unet = UNet2DConditionModel.from_pretrained(folder, subfolder="unet")
        if not options.unet:
            self.unet.to(self.type).requires_grad_(False)
        self.vae = AutoencoderKL.from_pretrained(folder, subfolder="vae").to(self.type).requires_grad_(False)
        if options.channels_last:
            self.unet.to(memory_format=torch.channels_last)
            self.vae.to(memory_format=torch.channels_last)
        self.average = None
        if options.lora:
            self.adapt(folder)
        elif options.unet:
            self.train_all(folder)
        else:
            self.teach(folder)
        self.noise_schedule = DDPMScheduler.from_pretrained(folder, subfolder="scheduler")
        self.ids = torch.randint(0, 49000, (options.batch, 77))
        if not options.lora and not options.unet:
            self.ids[:, 4] = self.learned
        self.pixels = torch.randn(options.batch, 3, options.resolution, options.resolution).to(self.type)

    def adapt(self, folder):
        """As the script does, of which only adapters are left in fp32."""
        self.text = CLIPTextModel.from_pretrained(folder, subfolder="text_encoder").to(self.type).requires_grad_(False)
        rank, targets = self.options.lora, ["to_k", "to_q", "to_v", "to_out.0"]
        self.unet.add_adapter(LoraConfig(r=rank, lora_alpha=rank, init_lora_weights="gaussian", target_modules=targets))
        if self.type == torch.bfloat16:
            cast_training_params(self.unet, dtype=torch.float32)
        self.optimizer = torch.optim.AdamW([one for one in self.unet.parameters() if one.requires_grad], lr=1e-4)

    def train_all(self, folder):
        self.text = CLIPTextModel.from_pretrained(folder, subfolder="text_encoder").to(self.type).requires_grad_(False)
        self.unet.train()
        if self.options.gradient_checkpointing:
            self.unet.enable_gradient_checkpointing()
        if self.options.ema:
            self.average = EMAModel(self.unet.parameters(), model_cls=UNet2DConditionModel, model_config=self.unet.config)
        self.optimizer = torch.optim.AdamW(self.unet.parameters(), lr=1e-4)

    def teach(self, folder):
        self.text = CLIPTextModel.from_pretrained(folder, subfolder="text_encoder", dtype=torch.float32).train()
        for name, parameter in self.text.named_parameters():
            parameter.requires_grad_("token_embedding" in name)
        self.table = self.text.get_input_embeddings().weight
        self.original = self.table.data.clone()
        self.learned = self.table.shape[0] - 1
        self.optimizer = torch.optim.AdamW([self.table], lr=1e-3)

    def step(self):
        """One step; the seconds of its parts in order."""
        marks = [("start", time.perf_counter())]
        mark = lambda name: marks.append((name, time.perf_counter()))
        with torch.no_grad():
            latents = self.vae.encode(self.pixels).latent_dist.sample() * self.vae.config.scaling_factor
        mark("vae_seconds")
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, self.noise_schedule.config.num_train_timesteps, (self.options.batch,))
        noisy_latents = self.noise_schedule.add_noise(latents, noise, timesteps)
        # accelerate prepares the model that is trained: it runs under autocast.
        trained = torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.type == torch.bfloat16)
        trains_unet = self.options.lora or self.options.unet
        with nullcontext() if trains_unet else trained:
            hidden = self.text(self.ids)[0]
        hidden = hidden.float().to(self.type)
        mark("text_seconds")
        with trained if trains_unet else nullcontext():
            predicted = self.unet(noisy_latents, timesteps, hidden).sample
        mark("unet_seconds")
        F.mse_loss(predicted.float(), noise.float(), reduction="mean").backward()
        mark("backward_seconds")
        if self.options.unet:
            torch.nn.utils.clip_grad_norm_(self.unet.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average:
            self.average.step(self.unet.parameters())
        if not trains_unet:
            self.restore_others()
        mark("optimizer_seconds")
        parts = {name: after - before for (_, before), (name, after) in zip(marks, marks[1:])}
        return {**parts, "step_seconds": marks[-1][1] - marks[0][1]}

    def restore_others(self):
        others = torch.ones(self.table.shape[0], dtype=torch.bool)
        others[self.learned] = False
        with torch.no_grad():
            self.table[others] = self.original[others]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--resolution", type=int, default=512)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, help="default: torch's own")
    parser.add_argument("--precision", choices=TYPES, default="bf16", help="the script's --mixed_precision; fp32: no")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--lora", type=int, metavar="RANK")
    parser.add_argument("--unet", action="store_true")
    parser.add_argument("--ema", action="store_true")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    script = Script(options)
    for _ in range(options.steps):
        print(json.dumps({name: round(value, 4) for name, value in script.step().items()}), flush=True)
    print(json.dumps({"peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


if __name__ == "__main__":
    main()
