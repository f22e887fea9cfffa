#!/usr/bin/env python3
"""Load what a job of kind "lora" left as diffusers does, and compare each layer's weights with the factors' product.

usage: check_lora.py CHECKPOINT FOLDER

FOLDER has pytorch_lora_weights.safetensors and one more .safetensors file with kohya's keys. Each is loaded by
`load_lora_weights` and fused: every layer has to become W + alpha / rank · up · down, and all others stay.

Prints a JSON line; exit code 0 when all agree, 1 when not. Run it with the python that setup.sh prints.
"""
import quiet  # noqa: F401

import json
import sys
from pathlib import Path

import torch
from diffusers import StableDiffusionPipeline
from safetensors import safe_open

DIFFUSERS = "pytorch_lora_weights.safetensors"


def weights(unet):
    return {name.replace(".base_layer", ""): value.detach().clone() for name, value in unet.state_dict().items()
            if "lora_" not in name}


def main():
    checkpoint, folder = sys.argv[1], Path(sys.argv[2])
    (kohya,) = [file for file in folder.glob("*.safetensors")
                if not file.name.startswith(("pytorch_lora_weights", "checkpoint"))]
    with safe_open(folder / DIFFUSERS, "pt") as file:
        adapter = json.loads(file.metadata()["lora_adapter_metadata"])
        factors = {name: file.get_tensor(name).float() for name in file.keys()}
    scale = adapter["unet.lora_alpha"] / adapter["unet.r"]
    worst, layers = {}, 0
    for file in (folder / DIFFUSERS, kohya):
        pipeline = StableDiffusionPipeline.from_pretrained(checkpoint, safety_checker=None)
        before = weights(pipeline.unet)
        pipeline.load_lora_weights(file.parent, weight_name=file.name)
        pipeline.fuse_lora()
        after, error, layers = weights(pipeline.unet), 0.0, 0
        for name, value in before.items():
            up = factors.get(f"unet.{name.removesuffix('.weight')}.lora.up.weight")
            if up is None:
                assert torch.equal(after[name], value), f"{file.name}: {name} has changed"
                continue
            layers += 1
            down = factors[f"unet.{name.removesuffix('.weight')}.lora.down.weight"]
            added = scale * (up.flatten(1) @ down.flatten(1)).reshape(value.shape)
            assert added.abs().max() > 0, f"{name} has learned nothing"
            error = max(error, ((after[name] - value - added).abs().max() / added.abs().max()).item())
        worst[file.name] = error
    ok = layers == len(factors) // 2 and all(error <= 1e-4 for error in worst.values())
    print(json.dumps({"ok": ok, "layers": layers, "worst": worst, "scale": scale}))
    sys.exit(not ok)


if __name__ == "__main__":
    main()
