#!/usr/bin/env python3
"""Draw pictures again in diffusers, from nothing but what they say about themselves, and compare.

usage: check_pictures.py CHECKPOINT PICTURE... [--embeds FILE]... [--lora FILE[:WEIGHT]] [--plain]

Each PICTURE is a PNG of `ringtune generate --mixed-precision no`. Its `parameters` are read by Pillow and taken apart
by AUTOMATIC1111's rule (restated below); then diffusers draws the picture with the same first noise, which is the
documented function of seed and number (worker/src/train/draws.rs).

Prompts are handed to diffusers as embeddings made in chunks of 75 tokens, each with its own begin and end, as
AUTOMATIC1111 and compel do, an embedding's vectors not being torn apart. With --plain they are handed over as texts.

Prints a JSON line for each picture: what it says, and the mean absolute difference as a share of 255; exit code 0 when
that is at most 1/255 for all. Run it with the python that setup.sh prints.
"""
import quiet  # noqa: F401

import argparse
import json
import re
import sys
from pathlib import Path

import numpy
import torch
from PIL import Image
from diffusers import (DDIMScheduler, DPMSolverMultistepScheduler, EulerDiscreteScheduler, LMSDiscreteScheduler,
                       PNDMScheduler, StableDiffusionPipeline)

SCHEDULERS = {
    "DDIM": (DDIMScheduler, {}), "PLMS": (PNDMScheduler, {}), "Euler": (EulerDiscreteScheduler, {}),
    "DPM++ 2M": (DPMSolverMultistepScheduler, {}),
    "DPM++ 2M Karras": (DPMSolverMultistepScheduler, {"use_karras_sigmas": True}), "LMS": (LMSDiscreteScheduler, {})}


def read_parameters(text):
    """The rule by which AUTOMATIC1111 (and those who copied it) reads the text: the last line holds `Key: value` pairs
    if it has at least three; values may be JSON strings; "Negative prompt:" begins the negative prompt."""
    pair = re.compile(r'\s*(\w[\w \-/]+):\s*("(?:\\.|[^\\"])+"|[^,]*)(?:,|$)')
    lines = text.strip().split("\n")
    settings = {}
    if len(pair.findall(lines[-1])) >= 3:
        for key, value in pair.findall(lines.pop()):
            settings[key] = json.loads(value) if value.startswith('"') else value
    prompts, part = {"prompt": [], "negative": []}, "prompt"
    for line in lines:
        line = line.strip()
        if line.startswith("Negative prompt:"):
            part, line = "negative", line.removeprefix("Negative prompt:").strip()
        prompts[part].append(line)
    return {name: "\n".join(lines) for name, lines in prompts.items()}, settings


def philox(key, counters):
    """Philox4x32-10 (Salmon et al. 2011) of many counters at once: [n, 4] uint32 each."""
    words = [counters[:, i].astype(numpy.uint64) for i in range(4)]
    low, mask = [int(key) & 0xFFFFFFFF, int(key) >> 32], numpy.uint64(0xFFFFFFFF)
    for _ in range(10):
        one, two = words[0] * numpy.uint64(0xD2511F53), words[2] * numpy.uint64(0xCD9E8D57)
        words = [(two >> numpy.uint64(32)) ^ words[1] ^ numpy.uint64(low[0]), two & mask,
                 (one >> numpy.uint64(32)) ^ words[3] ^ numpy.uint64(low[1]), one & mask]
        low = [(low[0] + 0x9E3779B9) & 0xFFFFFFFF, (low[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return numpy.stack(words, 1)


def first_noise(seed, picture, shape):
    """Purpose 7, generated pictures: Box-Muller on pairs of words, in double precision."""
    length = int(numpy.prod(shape))
    blocks = -(-length // 4)
    counters = numpy.zeros((blocks, 4), numpy.uint32)
    counters[:, 0], counters[:, 1], counters[:, 3] = numpy.arange(blocks), picture, 7 << 24
    pairs = philox(seed, counters).reshape(-1, 2).astype(numpy.float64)
    radius = numpy.sqrt(-2 * numpy.log((pairs[:, 0] + 0.5) / 2 ** 32))
    angle = pairs[:, 1] / 2 ** 32 * 2 * numpy.pi
    normals = numpy.stack([radius * numpy.cos(angle), radius * numpy.sin(angle)], 1).reshape(-1)[:length]
    return torch.from_numpy(normals.astype(numpy.float32)).reshape(shape)


def chunks_of(pipeline, prompt):
    """Token ids in chunks of 75; `token`, `token_1`, … stay together."""
    tokenizer = pipeline.tokenizer
    tokens = tokenizer.tokenize(pipeline.maybe_convert_prompt(prompt, tokenizer))
    chunks, place = [[]], 0
    while place < len(tokens):
        together = 1
        while tokens[place + together:place + together + 1] == [f"{tokens[place]}_{together}"]:
            together += 1
        if len(chunks[-1]) + together > 75:
            chunks.append([])
        chunks[-1] += tokenizer.convert_tokens_to_ids(tokens[place:place + together])
        place += together
    return chunks


@torch.no_grad()
def states_of(pipeline, chunks):
    tokenizer = pipeline.tokenizer
    states = []
    for chunk in chunks:
        ids = [tokenizer.bos_token_id, *chunk, tokenizer.eos_token_id]
        ids += [tokenizer.pad_token_id] * (77 - len(ids))
        states.append(pipeline.text_encoder(torch.tensor([ids]))[0])
    return torch.cat(states, 1)


def prompts_for(pipeline, prompts, plain):
    if plain:
        return {"prompt": prompts["prompt"], "negative_prompt": prompts["negative"]}, 1
    both = [chunks_of(pipeline, prompts[name]) for name in ("prompt", "negative")]
    longest = max(map(len, both))
    both = [chunks + [[]] * (longest - len(chunks)) for chunks in both]
    states = [states_of(pipeline, chunks) for chunks in both]
    return {"prompt_embeds": states[0], "negative_prompt_embeds": states[1]}, longest


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("pictures", nargs="+")
    parser.add_argument("--embeds", action="append", default=[])
    parser.add_argument("--lora")
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pipeline = StableDiffusionPipeline.from_pretrained(
        options.checkpoint, safety_checker=None, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    for file in options.embeds:
        pipeline.load_textual_inversion(file)
    if options.lora:
        file, _, weight = options.lora.partition(":")
        pipeline.load_lora_weights(Path(file).parent, weight_name=Path(file).name, adapter_name="lora")
        pipeline.set_adapters(["lora"], [float(weight or 1)])
    loaded = pipeline.scheduler
    factor = 2 ** (len(pipeline.vae.config.block_out_channels) - 1)
    good = True
    for file in options.pictures:
        picture = Image.open(file)
        prompts, settings = read_parameters(picture.info["parameters"])
        width, height = map(int, settings["Size"].split("x"))
        scheduler, more = SCHEDULERS[settings["Sampler"]]
        # The pipeline's own is as it was loaded, which may not be what the class makes of the same file.
        is_own = type(loaded) is scheduler and not more
        pipeline.scheduler = loaded if is_own else scheduler.from_config(loaded.config, **more)
        shape = (1, pipeline.unet.config.in_channels, height // factor, width // factor)
        noise = first_noise(int(settings["Seed"]), int(settings["Picture"]), shape)
        texts, chunks = prompts_for(pipeline, prompts, options.plain)
        # The size is that of the latents; the pipeline only checks that the one it is told is a multiple of 8.
        drawn = pipeline(**texts, num_inference_steps=int(settings["Steps"]), height=64, width=64, latents=noise,
                         guidance_scale=float(settings["CFG scale"]), output_type="np").images[0]
        theirs = (drawn * 255).round()
        ours = numpy.asarray(picture, numpy.float64)
        difference = abs(ours - theirs).mean() / 255
        good &= ours.shape == theirs.shape and difference <= 1 / 255 and ours.std() > 5
        print(json.dumps({"picture": file, "chunks": chunks, "difference": difference, "spread": ours.std(), **prompts,
                          "settings": settings, "chunk": type(picture.text["parameters"]).__name__}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
