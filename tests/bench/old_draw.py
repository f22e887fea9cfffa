#!/usr/bin/env python3
"""Time diffusers' pipeline on a checkpoint, picture by picture.

usage: old_draw.py CHECKPOINT [--resolution 512] [--pictures 2] [--steps 25] [--guidance 7.5] [--threads N] [--precision bf16|fp32]

Tuned as it can be without other software: channels-last weights, no gradients; run it under
LD_PRELOAD=libtcmalloc_minimal.so.4. Prints a JSON line a picture with `picture_seconds`, from prompt to pixels.
"""
import os

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")

import argparse
import json
import time

import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--resolution", type=int, default=512)
    parser.add_argument("--pictures", type=int, default=2)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--guidance", type=float, default=7.5)
    parser.add_argument("--threads", type=int, help="default: torch's own")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[options.precision]
    pipeline = StableDiffusionPipeline.from_pretrained(options.checkpoint, torch_dtype=kind, safety_checker=None)
    pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)
    pipeline.unet.to(memory_format=torch.channels_last)
    pipeline.vae.to(memory_format=torch.channels_last)
    pipeline.set_progress_bar_config(disable=True)
    for number in range(1, options.pictures + 1):
        started = time.perf_counter()
        pipeline("a photo of a green star", num_inference_steps=options.steps, guidance_scale=options.guidance,
                 height=options.resolution, width=options.resolution)
        print(json.dumps({"picture": number, "picture_seconds": round(time.perf_counter() - started, 4)}), flush=True)


if __name__ == "__main__":
    main()
