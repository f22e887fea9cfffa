#!/usr/bin/env python3
"""Checkpoints in one file, in the layout of the original Stable Diffusion code, for tests of reading them.

usage: original_layout.py write FOLDER OUT.safetensors [--dtype fp32|fp16|bf16]
       original_layout.py tiny OUT_DIR
       original_layout.py sizes PRESET OUT.safetensors
       original_layout.py same FILE OTHER
       original_layout.py check

write   the checkpoint in diffusers' layout in FOLDER, as one file
tiny    OUT_DIR/one and OUT_DIR/two, checkpoints of random weights with what no file can say (heads, groups of norms) as
        in Stable Diffusion 1.x and 2.x, and one.safetensors and two.safetensors, the same as one file; half-one.safetensors
        and half-two.safetensors, in fp16 and bf16, with folders half-one and half-two of the same weights
sizes   a file with the names and shapes of a whole checkpoint (PRESET: sd15 or sd2base, see make_sd.py) and no content:
        it takes no room on the disk
same    whether both files have the same tensors to the bit, but for the block of open_clip that is not used
check   the mapping here against diffusers' own: its converters make of the file what the folder holds, at tiny size by
        StableDiffusionPipeline.from_single_file, and name by name at the real sizes; which it also takes for "v1" and "v2"

Beside the weights a file has what the published ones have too, and what has to be ignored: running averages, the
schedule, position ids, and of open_clip the last block, the projection and the scale.

Run it with the python that setup.sh prints.
"""
import argparse
import json
import re
import struct
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import make_sd

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
CROSS_DOWN, DOWN, CROSS_UP, UP = make_sd.CROSS_DOWN, make_sd.DOWN, make_sd.CROSS_UP, make_sd.UP
# The names begin with "tiny", so that make_sd gives every bias and scale its own value.
make_sd.PRESETS |= {
    "tiny-one": dict(
        text=dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=1,
                  hidden_act="quick_gelu", projection_dim=64),
        unet=dict(sample_size=64, layers_per_block=1, block_out_channels=(32, 64), cross_attention_dim=64,
                  attention_head_dim=8, down_block_types=(CROSS_DOWN, DOWN), up_block_types=(UP, CROSS_UP)),
        vae=dict(block_out_channels=(32, 32, 32, 64), layers_per_block=1, sample_size=512),
        prediction_type="epsilon", pad_token="<|endoftext|>",
    ),
    "tiny-two": dict(
        text=dict(hidden_size=128, intermediate_size=160, num_hidden_layers=23, num_attention_heads=2,
                  hidden_act="gelu", projection_dim=128),
        unet=dict(sample_size=384, layers_per_block=2, block_out_channels=(64, 128, 128), cross_attention_dim=128,
                  attention_head_dim=(1, 2, 2), use_linear_projection=True,
                  down_block_types=(CROSS_DOWN, CROSS_DOWN, DOWN), up_block_types=(UP, CROSS_UP, CROSS_UP)),
        vae=dict(block_out_channels=(32, 64), layers_per_block=2, sample_size=768),
        prediction_type="v_prediction", pad_token="!",
    ),
}

RESNET = {"norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1", "norm2": "out_layers.0",
          "conv2": "out_layers.3", "conv_shortcut": "skip_connection"}
UNET_SINGLE = {"time_embedding.linear_1": "time_embed.0", "time_embedding.linear_2": "time_embed.2",
               "conv_in": "input_blocks.0.0", "conv_norm_out": "out.0", "conv_out": "out.2"}
VAE_ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}
TEXT = {"self_attn.out_proj": "attn.out_proj", "layer_norm1": "ln_1", "layer_norm2": "ln_2", "mlp.fc1": "mlp.c_fc",
        "mlp.fc2": "mlp.c_proj"}


def unet_name(name, layers, levels, attention_at):
    """`attention_at`: up blocks with transformers, after which their upsampler comes."""
    if found := re.fullmatch(r"down_blocks\.(\d+)\.(resnets|attentions)\.(\d+)\.(.*)\.(weight|bias)", name):
        block, kind, layer, part, end = found.groups()
        index = 1 + int(block) * (layers + 1) + int(layer)
        return f"input_blocks.{index}.0.{RESNET[part]}.{end}" if kind == "resnets" else f"input_blocks.{index}.1.{part}.{end}"
    if found := re.fullmatch(r"down_blocks\.(\d+)\.downsamplers\.0\.conv\.(.*)", name):
        return f"input_blocks.{(int(found[1]) + 1) * (layers + 1)}.0.op.{found[2]}"
    if found := re.fullmatch(r"up_blocks\.(\d+)\.(resnets|attentions)\.(\d+)\.(.*)\.(weight|bias)", name):
        block, kind, layer, part, end = found.groups()
        index = int(block) * (layers + 1) + int(layer)
        return f"output_blocks.{index}.0.{RESNET[part]}.{end}" if kind == "resnets" else f"output_blocks.{index}.1.{part}.{end}"
    if found := re.fullmatch(r"up_blocks\.(\d+)\.upsamplers\.0\.conv\.(.*)", name):
        block = int(found[1])
        return f"output_blocks.{block * (layers + 1) + layers}.{2 if attention_at[block] else 1}.conv.{found[2]}"
    if found := re.fullmatch(r"mid_block\.resnets\.(\d)\.(.*)\.(weight|bias)", name):
        return f"middle_block.{2 * int(found[1])}.{RESNET[found[2]]}.{found[3]}"
    if found := re.fullmatch(r"mid_block\.attentions\.0\.(.*)", name):
        return f"middle_block.1.{found[1]}"
    stem, end = name.rsplit(".", 1)
    return f"{UNET_SINGLE[stem]}.{end}"


def vae_name(name, levels):
    if "quant_conv" in name:
        return name
    half, name = name.split(".", 1)
    name = name.replace("conv_shortcut", "nin_shortcut").replace("conv_norm_out", "norm_out")
    if found := re.fullmatch(r"(down|up)_blocks\.(\d+)\.(resnets|downsamplers|upsamplers)\.(\d+)\.(.*)", name):
        side, block, kind, layer, rest = found.groups()
        block = int(block) if side == "down" else levels - 1 - int(block)
        middle = f"block.{layer}" if kind == "resnets" else f"{side}sample"
        return f"{half}.{side}.{block}.{middle}.{rest}"
    if found := re.fullmatch(r"mid_block\.resnets\.(\d)\.(.*)", name):
        return f"{half}.mid.block_{int(found[1]) + 1}.{found[2]}"
    if found := re.fullmatch(r"mid_block\.attentions\.0\.(.*)\.(weight|bias)", name):
        return f"{half}.mid.attn_1.{VAE_ATTENTION[found[1]]}.{found[2]}"
    return f"{half}.{name}"


def open_clip(weights):
    """transformers' text encoder as open_clip has it, without what it does not have."""
    renamed, fused = {}, {}
    for name, tensor in weights.items():
        if found := re.fullmatch(r"encoder\.layers\.(\d+)\.(.*)\.(weight|bias)", name):
            layer, part, end = found.groups()
            if part in TEXT:
                renamed[f"transformer.resblocks.{layer}.{TEXT[part]}.{end}"] = tensor
            else:
                fused.setdefault(f"transformer.resblocks.{layer}.attn.in_proj_{end}", {})[part[-6]] = tensor
        else:
            place = {"embeddings.token_embedding.weight": "token_embedding.weight",
                     "embeddings.position_embedding.weight": "positional_embedding"}
            renamed[place.get(name) or name.replace("final_layer_norm", "ln_final")] = tensor
    for name, parts in fused.items():
        renamed[name] = torch.cat([parts[letter] for letter in "qkv"])
    return renamed


def to_original(unet, vae, text):
    """The file's tensors, of the three models."""
    layers, channels = unet.config.layers_per_block, unet.config.block_out_channels
    attention_at = [kind == CROSS_UP for kind in unet.config.up_block_types]
    levels = len(vae.config.block_out_channels)
    file = {}
    for name, tensor in unet.state_dict().items():
        file["model.diffusion_model." + unet_name(name, layers, len(channels), attention_at)] = tensor
    for name, tensor in vae.state_dict().items():
        is_matrix = ".attentions." in name and tensor.dim() == 2
        file["first_stage_model." + vae_name(name, levels)] = tensor[:, :, None, None] if is_matrix else tensor
    weights = {name.removeprefix("text_model."): tensor for name, tensor in text.state_dict().items()}
    weights.pop("embeddings.position_ids", None)
    if text.config.num_hidden_layers == 23:
        file |= {f"cond_stage_model.model.{name}": tensor for name, tensor in open_clip(weights).items()}
        # The block that is not used, with other values than any that is.
        block = "cond_stage_model.model.transformer.resblocks."
        file |= {name.replace(f"{block}22.", f"{block}23."): tensor + 1 for name, tensor in file.items()
                 if name.startswith(f"{block}22.")}
        width = text.config.hidden_size
        file["cond_stage_model.model.text_projection"] = torch.ones(width, width, device=text.device)
        file["cond_stage_model.model.logit_scale"] = torch.tensor(4.6, device=text.device)
    else:
        file |= {f"cond_stage_model.transformer.text_model.{name}": tensor for name, tensor in weights.items()}
        positions = torch.arange(77, device=text.device)[None]
        file["cond_stage_model.transformer.text_model.embeddings.position_ids"] = positions
    # What training left there: a running average of the weights under flattened names, and the schedule.
    file["model_ema.decay"] = torch.tensor(0.9999, device=text.device)
    file["model_ema.num_updates"] = torch.tensor(7, dtype=torch.int32, device=text.device)
    for name in ("model.diffusion_model.out.2.weight", "model.diffusion_model.out.2.bias"):
        file["model_ema." + name.removeprefix("model.").replace(".", "")] = torch.zeros_like(file[name])
    for name in ("betas", "alphas_cumprod", "sqrt_one_minus_alphas_cumprod", "lvlb_weights"):
        file[name] = torch.ones(1000, device=text.device)
    return {name: tensor.contiguous() for name, tensor in file.items()}


def load(folder):
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from transformers import CLIPTextModel
    return (UNet2DConditionModel.from_pretrained(folder, subfolder="unet"),
            AutoencoderKL.from_pretrained(folder, subfolder="vae"),
            CLIPTextModel.from_pretrained(folder, subfolder="text_encoder"))


def write(folder, out, dtype):
    file = to_original(*load(folder))
    save_file({n: t.to(dtype) if t.is_floating_point() else t for n, t in file.items()}, out, {"format": "pt"})


def make_tiny(out):
    from diffusers import StableDiffusionPipeline
    out.mkdir(parents=True, exist_ok=True)
    for name, dtype in (("one", "fp16"), ("two", "bf16")):
        make_sd.make_checkpoint(out / name, f"tiny-{name}")
        write(out / name, out / f"{name}.safetensors", torch.float32)
        pipeline = StableDiffusionPipeline.from_pretrained(out / name, dtype=DTYPES[dtype], safety_checker=None)
        pipeline.save_pretrained(out / f"half-{name}")
        write(out / f"half-{name}", out / f"half-{name}.safetensors", DTYPES[dtype])


def without_content(preset_name):
    """The models of a preset, of no memory."""
    from diffusers import UNet2DConditionModel
    preset = make_sd.PRESETS[preset_name]
    with torch.device("meta"):
        return (UNet2DConditionModel(**{"in_channels": 4, "out_channels": 4, **preset["unet"]}),
                make_sd.make_vae(preset["vae"]), make_sd.make_text_encoder(preset["text"]))


def write_sizes(preset_name, out):
    """Header and length of a safetensors file in fp16; the rest is a hole."""
    header, end = {}, 0
    for name, tensor in to_original(*without_content(preset_name)).items():
        start, end = end, end + 2 * tensor.numel()
        header[name] = {"dtype": "F16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(out, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def same(file, other):
    file, other = load_file(file), load_file(other)
    assert file.keys() == other.keys(), file.keys() ^ other.keys()
    for name, tensor in file.items():
        unused = ".resblocks.23." in name
        assert unused or tensor.dtype == other[name].dtype and torch.equal(tensor, other[name]), name


def check_converters(models, kind):
    """diffusers' converters make of the file what the models hold."""
    from diffusers.loaders import single_file_utils as theirs
    unet, vae, text = models
    file = to_original(*models)
    if kind:
        found = theirs.infer_diffusers_model_type(file)
        assert found == kind, f"diffusers takes it for {found}, not {kind}"
    if theirs.is_open_clip_model(file):
        converted_text = theirs.convert_open_clip_checkpoint(text, file)
    else:
        assert theirs.is_clip_model(file)
        converted_text = theirs.convert_ldm_clip_checkpoint(file)
    pairs = {
        "unet": (unet.state_dict(), theirs.convert_ldm_unet_checkpoint(dict(file), unet.config)),
        "vae": (vae.state_dict(), theirs.convert_ldm_vae_checkpoint(dict(file), vae.config)),
        "text": ({n.removeprefix("text_model."): t for n, t in text.state_dict().items()},
                 {n.removeprefix("text_model."): t for n, t in converted_text.items()}),
    }
    for what, (ours, converted) in pairs.items():
        ignored = {"embeddings.position_ids", "text_projection.weight"}
        assert ours.keys() - ignored == converted.keys() - ignored, (what, ours.keys() ^ converted.keys())
        for name in ours.keys() - ignored:
            assert ours[name].shape == converted[name].shape, (what, name)
            assert ours[name].is_meta or torch.equal(ours[name], converted[name]), (what, name)
    return {what: len(ours) for what, (ours, _) in pairs.items()}


def check():
    import tempfile
    from diffusers import StableDiffusionPipeline
    for preset, kind in (("sd15", "v1"), ("sd2base", "v2")):
        print(f"{preset}: diffusers takes it for {kind}, and makes all of {check_converters(without_content(preset), kind)}")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        make_tiny(out)
        for name in ("one", "two"):
            models = load(out / name)
            check_converters(models, None)
            pipeline = StableDiffusionPipeline.from_single_file(
                str(out / f"{name}.safetensors"), config=str(out / name), local_files_only=True, safety_checker=None)
            for ours, theirs in zip(models, (pipeline.unet, pipeline.vae, pipeline.text_encoder)):
                ours, theirs = ours.state_dict(), theirs.state_dict()
                assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
                assert all(torch.equal(ours[key], theirs[key]) for key in ours)
            print(f"{name}: from_single_file gives the same weights as the folder")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("write")
    command.add_argument("folder", type=Path)
    command.add_argument("out", type=Path)
    command.add_argument("--dtype", choices=DTYPES, default="fp32")
    commands.add_parser("tiny").add_argument("out", type=Path)
    command = commands.add_parser("sizes")
    command.add_argument("preset", choices=("sd15", "sd2base"))
    command.add_argument("out", type=Path)
    command = commands.add_parser("same")
    command.add_argument("file", type=Path)
    command.add_argument("other", type=Path)
    commands.add_parser("check")
    options = parser.parse_args()
    if options.command == "write":
        write(options.folder, options.out, DTYPES[options.dtype])
    elif options.command == "tiny":
        make_tiny(options.out)
    elif options.command == "sizes":
        write_sizes(options.preset, options.out)
    elif options.command == "same":
        same(options.file, options.other)
    else:
        check()


if __name__ == "__main__":
    sys.exit(main())
