#!/usr/bin/env python3
"""Count the pictures that show a concept, "a SHAPE of a COLOUR", by the measure of shape_measure.py.

usage: count_right.py --shape star --colour green [--min-right N]
                      ( --pictures DIR | --embeds FILE --checkpoint DIR [--count 16] )

--pictures: the PNG files of a folder, as `ringtune generate` writes them. --embeds: pictures that diffusers draws with a
learned_embeds.safetensors, by DDIM in 25 steps with a guidance scale of 4, from seeds 0, 1, …, all in one batch.

Prints a JSON line; exit code 0 when at least --min-right are right, 1 when not. Run it with the python that setup.sh
prints.
"""
import quiet  # noqa: F401

import argparse
import json
import sys
from pathlib import Path

from PIL import Image

from shape_measure import MIN_OVERLAP, measure


def drawn_by_diffusers(embeds, checkpoint, count):
    import torch
    from diffusers import DDIMScheduler, StableDiffusionPipeline
    from safetensors import safe_open

    pipeline = StableDiffusionPipeline.from_pretrained(checkpoint, safety_checker=None, dtype=torch.float32)
    pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.load_textual_inversion(str(embeds))
    with safe_open(embeds, "pt") as file:
        (token,) = file.keys()
    generators = [torch.Generator().manual_seed(seed) for seed in range(count)]
    return pipeline([f"a photo of a {token}"] * count, num_inference_steps=25, guidance_scale=4.0, generator=generators).images


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", required=True)
    parser.add_argument("--colour", required=True)
    parser.add_argument("--min-right", type=int, default=0)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--embeds", type=Path)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--count", type=int, default=16)
    options = parser.parse_args()

    if options.pictures:
        pictures = [Image.open(path) for path in sorted(options.pictures.glob("*.png"))]
    else:
        pictures = drawn_by_diffusers(options.embeds, options.checkpoint, options.count)
    seen = [measure(picture) for picture in pictures]
    shapes = [one["shape"] == options.shape and one["overlap"] >= MIN_OVERLAP for one in seen]
    colours = [one["colour"] == options.colour for one in seen]
    right = sum(shape and colour for shape, colour in zip(shapes, colours))
    ok = right >= options.min_right
    print(json.dumps({"ok": ok, "right": right, "count": len(seen), "shapes": sum(shapes), "colours": sum(colours)}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
