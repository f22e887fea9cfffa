#!/usr/bin/env python3
"""Make LoRA files as kohya's scripts name them, for every layer of diffusers' own models, and read what became of them.

usage: check_loras.py make FOLDER
       check_loras.py check FOLDER

`make` writes all.safetensors (every layer of Stable Diffusion 1.5's UNet and text encoder) and attention.safetensors
(attention alone) for `ringtune lora convert`. `check` takes each STEM-FORMAT.safetensors beside them as diffusers' loader
does, as far as that goes without PEFT: the same factors, for modules that are there and have these shapes, and PEFT's
rule for the alpha of each.

Prints a JSON line; exit code 0 when all agree, 1 when not. Run it with the python that setup.sh prints.
"""
import quiet  # noqa: F401

import json
import re
import sys
from pathlib import Path

import torch
from diffusers import StableDiffusionPipeline, UNet2DConditionModel
from diffusers.utils.state_dict_utils import (
    convert_state_dict_to_diffusers,
    convert_state_dict_to_peft,
    convert_unet_state_dict_to_peft,
)
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel

FORMATS = {"all": ["diffusers", "peft", "kohya"], "attention": ["diffusers", "peft", "kohya", "attention_processors"]}
ATTENTION = re.compile(r"\.to_[qkv]$|\.to_out\.0$|\.self_attn\.")


def layers():
    """The weights' shapes by component and name."""
    with torch.device("meta"):
        unet = UNet2DConditionModel(cross_attention_dim=768, attention_head_dim=8)
        text = CLIPTextModel(CLIPTextConfig(hidden_size=768, intermediate_size=3072, num_attention_heads=12))
    for component, model in [("unet", unet), ("text_encoder", text)]:
        for name, module in model.named_modules():
            if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)):
                # CLIP is flat in newer transformers; files have the older names.
                flat = component == "text_encoder" and not name.startswith("text_model.")
                yield component, f"text_model.{name}" if flat else name, module.weight.shape


def factors():
    """By component and name: A, B and alpha, of ranks 1 to 3."""
    generator, found = torch.Generator().manual_seed(0), {}
    for number, (component, name, shape) in enumerate(layers()):
        rank = 1 + number % 3
        a = torch.randn(rank, *shape[1:], generator=generator).to(torch.float16)
        b = torch.randn(shape[0], rank, *[1] * (len(shape) - 2), generator=generator).to(torch.float16)
        found[component, name] = (a, b, (1 + number % 5) / 4)
    return found


def make(folder):
    for stem in FORMATS:
        tensors = {}
        for (component, name), (a, b, alpha) in factors().items():
            if stem == "attention" and not ATTENTION.search(name):
                continue
            prefix = {"unet": "lora_unet", "text_encoder": "lora_te"}[component]
            key = f"{prefix}_{name.replace('.', '_')}"
            tensors[f"{key}.lora_down.weight"], tensors[f"{key}.lora_up.weight"] = a, b
            tensors[f"{key}.alpha"] = torch.tensor(alpha, dtype=torch.float16)
        save_file(tensors, folder / f"{stem}.safetensors", {"ss_output_name": stem})


def as_peft(path):
    """The factors by PEFT's keys, as diffusers' loader makes them, and its metadata."""
    state, _, metadata = StableDiffusionPipeline.lora_state_dict(str(path), return_lora_metadata=True)
    assert all("lora" in key for key in state), path
    of = {
        component: {key.removeprefix(f"{component}."): value for key, value in state.items()
                    if key.startswith(f"{component}.")}
        for component in ["unet", "text_encoder"]
    }
    text = convert_state_dict_to_peft(convert_state_dict_to_diffusers(of["text_encoder"]))
    return {"unet": convert_unet_state_dict_to_peft(of["unet"]), "text_encoder": text}, metadata


def alpha_of(metadata, component, name):
    """PEFT's rule: the first pattern that is the end of the name, else the alpha of all."""
    patterns = metadata[f"{component}.alpha_pattern"]
    found = next((key for key in patterns if re.match(rf"(.*\.)?({key})$", name)), None)
    return metadata[f"{component}.lora_alpha"] if found is None else patterns[found]


def check(folder):
    wanted, agree = factors(), {}
    for stem, formats in FORMATS.items():
        own = {place: one for place, one in wanted.items() if stem == "all" or ATTENTION.search(place[1])}
        for form in formats:
            path = folder / f"{stem}-{form}.safetensors"
            peft, metadata = as_peft(path)
            keys = {(component, key) for component in peft for key in peft[component]}
            right = keys == {(component, f"{name}.lora_{letter}.weight") for component, name in own for letter in "AB"}
            raw = load_file(path)
            for (component, name), (a, b, alpha) in own.items():
                if not right:
                    break
                found = [peft[component][f"{name}.lora_{letter}.weight"] for letter in "AB"]
                right = all(torch.equal(one, other) for one, other in zip(found, [a, b]))
                if form == "kohya":
                    prefix = {"unet": "lora_unet", "text_encoder": "lora_te"}[component]
                    right = right and raw[f"{prefix}_{name.replace('.', '_')}.alpha"].item() == alpha
                else:
                    # As both CLIPs, the flat one and the older, name it.
                    names = [name, name.removeprefix("text_model.")]
                    right = right and all(alpha_of(metadata, component, one) == alpha for one in names)
                    targets = metadata[f"{component}.target_modules"]
                    right = right and all(any(f".{one}".endswith(f".{end}") for end in targets) for one in names)
            with safe_open(path, "pt") as file:
                right = right and file.metadata()["ss_output_name"] == stem
            agree[path.name] = bool(right)
    # The comparison can fail: all of them are there.
    ok = len(agree) == 7 and all(agree.values())
    print(json.dumps({"ok": ok, "agree": agree, "modules": len(wanted)}))
    return 0 if ok else 1


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    sys.exit(make(folder) if sys.argv[1] == "make" else check(folder))
