#!/usr/bin/env python3
"""Make LoRA files for a model, and compare what `ringtune lora merge` made of them with what diffusers fuses.

usage: merge_loras.py make MODEL FOLDER
       merge_loras.py check MODEL FOLDER MERGED FILE:WEIGHT...

`make` writes two files for layers of every kind (linear, 1x1 and 3x3 convolutions, UNet and text encoder), whose alphas are
not their ranks: kohya.safetensors with kohya's keys, and dora.safetensors with PEFT's keys and DoRA's lengths; and the folder
fp32, which is MODEL as diffusers saves it. `check` fuses the files of FOLDER into MODEL in fp32 (`load_lora_weights`,
`fuse_lora`) and rounds the result to the types in the folder MERGED: each tensor has to be that, within 1e-4 of its length,
and each tensor that no LoRA changes the same to the bit. Headers and the other files have to be those of MODEL.

diffusers 0.42 ignores the alphas of kohya's keys where they differ between attention layers, and CLIP's attention altogether: in
the place of kohya.safetensors it gets peft.safetensors, the same numbers with PEFT's keys. It also passes over the text encoder's
lengths of DoRA, which are put in their place here.

Prints a JSON line; exit code 0 when all agree, 1 when not. Run it with the python that setup.sh prints.
"""
import quiet  # noqa: F401

import json
import re
import sys
from pathlib import Path

import torch
from diffusers import StableDiffusionPipeline
from safetensors.torch import load_file, save_file

PARTS = {"unet": "unet/diffusion_pytorch_model.safetensors", "text_encoder": "text_encoder/model.safetensors"}
# Some of every kind.
CHANGED = re.compile(r"attn[12]\.to_[qv]$|\.to_out\.0$|\.proj_in$|\.ff\.net\.2$|\.conv1$|\.conv_shortcut$|conv_in$"
                     r"|downsamplers\.0\.conv$|time_emb_proj$|linear_1$|\.q_proj$|\.fc1$")


def pipeline(model):
    return StableDiffusionPipeline.from_pretrained(model, dtype=torch.float32, safety_checker=None)


def layers(model):
    """Weights by component and name: CLIP is flat in newer transformers; files have the older names."""
    pipe = pipeline(model)
    for component in PARTS:
        for name, module in getattr(pipe, component).named_modules():
            if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)) and CHANGED.search(name):
                flat = component == "text_encoder" and not name.startswith("text_model.")
                yield component, f"text_model.{name}" if flat else name, module.weight.detach()


def make(model, folder):
    generator = torch.Generator().manual_seed(7)
    random = lambda *shape: torch.randn(*shape, generator=generator)
    kohya, peft, dora = {}, {}, {}
    alphas = {component: {} for component in PARTS}
    for number, (component, name, weight) in enumerate(layers(model)):
        rows, outputs = weight.flatten(1), weight.shape[0]
        size = rows.norm() / rows.numel() ** 0.5 / 4
        ends = [1] * (weight.dim() - 2)
        down, up = (random(3, *weight.shape[1:]) * size).half(), random(outputs, 3, *ends).half()
        # CLIP is flat in newer transformers, and diffusers takes these names as they are.
        short = name.removeprefix("text_model.")
        alpha = alphas[component][short] = (1 + number % 3) / 2
        key = f"{'lora_unet' if component == 'unet' else 'lora_te'}_{name.replace('.', '_')}"
        kohya |= {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up, f"{key}.alpha": torch.tensor(alpha)}
        key = f"{component}.{name}"
        peft |= {f"{key}.lora_A.weight": down, f"{key}.lora_B.weight": up}
        lengths = rows.norm(dim=1) * (1.5 + random(outputs).clamp(-1, 1) / 2)
        dora |= {f"{key}.lora_A.weight": random(2, *weight.shape[1:]) * size,
                 f"{key}.lora_B.weight": random(outputs, 2, *ends),
                 f"{key}.lora_magnitude_vector": lengths.reshape(1, -1, *ends) if ends else lengths}
    save_file(kohya, folder / "kohya.safetensors")
    for file, tensors, rank, differing in [("peft", peft, 3, alphas), ("dora", dora, 2, {})]:
        adapter = {f"{component}.{key}": value for component in PARTS for key, value in {
            "r": rank, "lora_alpha": 5, "rank_pattern": {}, "alpha_pattern": differing.get(component, {}),
            "use_dora": file == "dora", "target_modules": list(alphas[component])}.items()}
        metadata = {"format": "pt", "lora_adapter_metadata": json.dumps(adapter)}
        save_file(tensors, folder / f"{file}.safetensors", metadata)
    pipeline(model).save_pretrained(folder / "fp32")


def fused(model, folder, files):
    """Weights by component and name, without `text_model.`"""
    pipe = pipeline(model)
    given = [file.rsplit(":", 1) for file in files]
    for index, (file, _) in enumerate(given):
        file = file.replace("kohya", "peft")
        pipe.load_lora_weights(folder, weight_name=file, adapter_name=f"lora{index}")
        stored = load_file(folder / file)
        for name, module in pipe.text_encoder.named_modules():
            lengths = stored.get(f"text_encoder.text_model.{name.removeprefix('text_model.')}.lora_magnitude_vector")
            if lengths is not None:
                module.lora_magnitude_vector[f"lora{index}"].weight.data.copy_(lengths)
    adapters = [f"lora{index}" for index in range(len(given))]
    pipe.set_adapters(adapters, [float(weight) for _, weight in given])
    pipe.fuse_lora(components=list(PARTS), adapter_names=adapters)
    return {component: {name.replace(".base_layer", "").removeprefix("text_model."): value
                        for name, value in getattr(pipe, component).state_dict().items() if "lora_" not in name}
            for component in PARTS}


def header(file):
    with open(file, "rb") as opened:
        return opened.read(int.from_bytes(opened.read(8), "little"))


def check(model, folder, merged, files):
    expected, worst, changed, problems = fused(model, folder, files), {}, {}, []
    for component, file in PARTS.items():
        if header(model / file) != header(merged / file):
            problems.append(f"{file} has another header")
        before, after = load_file(model / file), load_file(merged / file)
        for name, value in after.items():
            short = name.removeprefix("text_model.")
            if not CHANGED.search(short.removesuffix(".weight")):
                if not torch.equal(value, before[name]):
                    problems.append(f"{name} has changed")
                continue
            right = expected[component][short].to(value.dtype).float()
            error = ((value.float() - right).norm() / right.norm()).item()
            moved = ((value.float() - before[name].float()).norm() / before[name].float().norm()).item()
            if error > 1e-4 or moved < 0.05:
                problems.append(f"{name}: error {error:.2g}, moved by {moved:.2g}")
            changed[component] = changed.get(component, 0) + 1
            worst[component] = max(error, worst.get(component, 0.0))
    for path in model.rglob("*"):
        there = merged / path.relative_to(model)
        if path.is_file() and str(path.relative_to(model)) not in PARTS.values() and path.name != "model_index.json":
            if not there.is_file() or there.read_bytes() != path.read_bytes():
                problems.append(f"{path.relative_to(model)} is not the model's")
    pipeline(merged)
    print(json.dumps({"ok": not problems, "changed": changed, "worst": worst, "problems": problems[:10]}))
    sys.exit(bool(problems))


if __name__ == "__main__":
    what, model, folder, *rest = sys.argv[1:]
    if what == "make":
        make(Path(model), Path(folder))
    else:
        check(Path(model), Path(folder), Path(rest[0]), rest[1:])
