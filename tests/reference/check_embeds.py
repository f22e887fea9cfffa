#!/usr/bin/env python3
"""Load learned embeddings in diffusers, draw pictures with them, and count those that show the concept.

usage: check_embeds.py EMBEDS CHECKPOINT [--prompt "a photo of a {}"] [--shape star --colour green]
                       [--count 8] [--min-right 6] [--out sheet.png]

EMBEDS is a learned_embeds.safetensors; its one key is the token. `{}` in the prompt becomes the token (of several
vectors too: diffusers' pipeline puts all of them in). Pictures by DDIM, from seeds 0, 1, …. What they show is measured
by shape_measure.py, for the toy checkpoint's shapes and colours.

Prints a JSON line for each picture and a summary; exit code 0 when at least --min-right are right, 1 when not.
Run it with the python that setup.sh prints.
"""
import quiet  # noqa: F401

import argparse
import json
import sys
from pathlib import Path

import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline
from PIL import Image
from safetensors import safe_open

from shape_measure import MIN_OVERLAP, measure


def read_token(path):
    """The token, its number of vectors and the width, checked against the file's fixed form."""
    with safe_open(path, "pt") as file:
        (token,) = file.keys()
        shape, dtype = file.get_slice(token).get_shape(), file.get_slice(token).get_dtype()
        assert len(shape) == 2 and dtype == "F32", f"{path}: {token} is {dtype} {shape}, expected F32 [vectors, width]"
        assert (file.metadata() or {}).get("format") == "pt", f"{path}: metadata {file.metadata()}"
    return token, shape


def draw_pictures(checkpoint, embeds, prompt, options):
    pipeline = StableDiffusionPipeline.from_pretrained(checkpoint, safety_checker=None, dtype=torch.float32)
    pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)
    pipeline.set_progress_bar_config(disable=True)
    if embeds:
        pipeline.load_textual_inversion(str(embeds))
    for seed in range(options.count):
        yield pipeline(
            prompt, num_inference_steps=options.steps, guidance_scale=options.guidance,
            generator=torch.Generator().manual_seed(seed)).images[0]


def make_sheet(pictures, path):
    width, height = pictures[0].size
    sheet = Image.new("RGB", (width * len(pictures), height))
    for index, picture in enumerate(pictures):
        sheet.paste(picture, (index * width, 0))
    sheet.save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("embeds", type=Path, help='"none": the prompt as it is, without embeddings')
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--prompt", default="a photo of a {}")
    parser.add_argument("--shape", default="star")
    parser.add_argument("--colour", default="green")
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--min-right", type=int, default=0)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--guidance", type=float, default=4.0)
    parser.add_argument("--out", type=Path, help="a PNG of all the pictures in a row")
    options = parser.parse_args()

    embeds, token, shape = None, "", None
    if str(options.embeds) != "none":
        embeds = options.embeds
        token, shape = read_token(embeds)
    prompt = options.prompt.replace("{}", token)
    pictures = list(draw_pictures(options.checkpoint, embeds, prompt, options))
    right = 0
    for seed, picture in enumerate(pictures):
        seen = measure(picture)
        hit = (seen["shape"], seen["colour"]) == (options.shape, options.colour) and seen["overlap"] >= MIN_OVERLAP
        right += hit
        print(json.dumps({"seed": seed, "right": hit, **seen}))
    if options.out:
        make_sheet(pictures, options.out)
    ok = right >= options.min_right
    print(json.dumps({"ok": ok, "right": right, "count": len(pictures), "token": token, "embeds_shape": shape, "prompt": prompt}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
