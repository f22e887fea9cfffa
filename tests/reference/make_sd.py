#!/usr/bin/env python3
"""Write a Stable Diffusion checkpoint with random weights in diffusers' folder layout, with CLIP's real vocabulary.

usage: make_sd.py OUT PRESET [--seed 0]

PRESET  tiny15   the shape of SD 1.x at toy size: quick_gelu, convolution projections, one number of heads, epsilon
        tiny2    the shape of SD 2.x at toy size: gelu, linear projections, heads set for each block, v-prediction;
                 and its own VAE depth, latent channels and scaling factor, so that nothing of it can be hard-coded
        sd15     the real size of SD 1.5 (4.3 GB)
        sd2base  the real size of SD 2 base (5.2 GB)

The tiny checkpoints also differ in form, so that every form is loaded by some test:
        tiny15   tokenizer.json alone; text weights named `text_model.…`; one safetensors file for each model
        tiny2    vocab.json + merges.txt beside tokenizer.json, padding "!"; text weights without the prefix; the
                 UNet's weights in shards with an index

Run it with the python that setup.sh prints.
"""
import argparse
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKL, DDIMScheduler, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

VOCABULARY = Path(__file__).resolve().parent.parent / "fixtures/toy-sd/tokenizer"
CROSS_DOWN, DOWN, CROSS_UP, UP = "CrossAttnDownBlock2D", "DownBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"

FULL_SIZE_UNET = dict(
    sample_size=64, layers_per_block=2, block_out_channels=(320, 640, 1280, 1280),
    down_block_types=(CROSS_DOWN,) * 3 + (DOWN,), up_block_types=(UP,) + (CROSS_UP,) * 3,
)
FULL_SIZE_VAE = dict(block_out_channels=(128, 256, 512, 512), layers_per_block=2)

PRESETS = {
    "tiny15": dict(
        text=dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                  hidden_act="quick_gelu", projection_dim=32),
        unet=dict(sample_size=8, layers_per_block=1, block_out_channels=(32, 64), norm_num_groups=8,
                  cross_attention_dim=32, attention_head_dim=4,
                  down_block_types=(CROSS_DOWN, DOWN), up_block_types=(UP, CROSS_UP)),
        vae=dict(block_out_channels=(8, 16, 16, 16), norm_num_groups=8, layers_per_block=1, sample_size=64),
        prediction_type="epsilon", pad_token="<|endoftext|>",
    ),
    "tiny2": dict(
        text=dict(hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
                  hidden_act="gelu", projection_dim=48),
        unet=dict(sample_size=8, layers_per_block=2, block_out_channels=(32, 64, 64), norm_num_groups=16,
                  cross_attention_dim=48, attention_head_dim=(2, 4, 4), use_linear_projection=True,
                  in_channels=6, out_channels=6,
                  down_block_types=(CROSS_DOWN, CROSS_DOWN, DOWN), up_block_types=(UP, CROSS_UP, CROSS_UP)),
        vae=dict(block_out_channels=(8, 16, 24), norm_num_groups=4, layers_per_block=2, sample_size=32,
                 latent_channels=6, scaling_factor=0.31),
        prediction_type="v_prediction", pad_token="!",
    ),
    "sd15": dict(
        text=dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
                  hidden_act="quick_gelu", projection_dim=768),
        unet=dict(**FULL_SIZE_UNET, cross_attention_dim=768, attention_head_dim=8),
        vae=dict(**FULL_SIZE_VAE, sample_size=512),
        prediction_type="epsilon", pad_token="<|endoftext|>",
    ),
    "sd2base": dict(
        text=dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=23, num_attention_heads=16,
                  hidden_act="gelu", projection_dim=512),
        unet=dict(**FULL_SIZE_UNET, cross_attention_dim=1024, attention_head_dim=(5, 10, 20, 20),
                  use_linear_projection=True),
        vae=dict(**FULL_SIZE_VAE, sample_size=768),
        prediction_type="epsilon", pad_token="!",
    ),
}


def make_text_encoder(options):
    return CLIPTextModel(CLIPTextConfig(
        vocab_size=49408, max_position_embeddings=77, bos_token_id=49406, eos_token_id=49407, pad_token_id=1, **options))


def make_vae(options):
    levels = len(options["block_out_channels"])
    return AutoencoderKL(
        in_channels=3, out_channels=3, **{"latent_channels": 4, **options},
        down_block_types=("DownEncoderBlock2D",) * levels, up_block_types=("UpDecoderBlock2D",) * levels)


def make_scheduler(prediction_type):
    options = dict(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", num_train_timesteps=1000,
        set_alpha_to_one=False, steps_offset=1, prediction_type=prediction_type)
    if prediction_type == "v_prediction":
        return DDIMScheduler(clip_sample=False, **options)
    scheduler = PNDMScheduler(skip_prk_steps=True, **options)
    # Samplers take their own default, true, where the key is absent. Real SD 1.5 checkpoints say false.
    scheduler.register_to_config(clip_sample=False)
    return scheduler


@torch.no_grad()
def make_untrained_weights_lively(model):
    """Give every scale and bias its own value, and text weights some size.

    Fresh models have ones and zeros there, with which a forgotten bias or two swapped norms would not show.
    """
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.add_(0.1 * torch.randn_like(parameter))
        elif isinstance(model, CLIPTextModel) and "embedding" not in name:
            parameter.normal_(std=parameter.shape[1] ** -0.5)


def rename_text_weights(folder):
    """The names that Stable Diffusion 1.x has on disk."""
    path = folder / "text_encoder/model.safetensors"
    save_file({f"text_model.{name}": tensor for name, tensor in load_file(path).items()}, path, {"format": "pt"})


def make_checkpoint(folder, preset_name, seed=0):
    """Write the checkpoint and return its models by name."""
    folder, preset = Path(folder), PRESETS[preset_name]
    torch.manual_seed(seed)
    models = {
        "vae": make_vae(preset["vae"]),
        "text_encoder": make_text_encoder(preset["text"]),
        "unet": UNet2DConditionModel(**{"in_channels": 4, "out_channels": 4, **preset["unet"]}),
    }
    if preset_name.startswith("tiny"):
        for model in models.values():
            make_untrained_weights_lively(model)
    tokenizer = CLIPTokenizer(
        str(VOCABULARY / "vocab.json"), str(VOCABULARY / "merges.txt"), pad_token=preset["pad_token"],
        model_max_length=77)
    StableDiffusionPipeline(
        **models, tokenizer=tokenizer, scheduler=make_scheduler(preset["prediction_type"]), safety_checker=None,
        feature_extractor=None, requires_safety_checker=False).save_pretrained(folder)
    if preset_name == "tiny15":
        rename_text_weights(folder)
        for name in ("vocab.json", "merges.txt"):
            (folder / "tokenizer" / name).unlink(missing_ok=True)
    else:
        for name in ("vocab.json", "merges.txt"):
            shutil.copyfile(VOCABULARY / name, folder / "tokenizer" / name)
    if preset_name == "tiny2":
        (folder / "unet/diffusion_pytorch_model.safetensors").unlink()
        models["unet"].save_pretrained(folder / "unet", max_shard_size="1MB")
    return models


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    models = make_checkpoint(arguments.out, arguments.preset, arguments.seed)
    for name, model in models.items():
        print(f"{name}: {sum(p.numel() for p in model.parameters()) / 1e6:.3f} M parameters")


if __name__ == "__main__":
    main()
