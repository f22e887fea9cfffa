"""Goldens of every block and of the whole models: inputs and outputs as they were inside a real forward pass.

Hooks on a run of the whole model in fp32 record what each block was given and what it made of it. Then the same
block in the reference's bf16 is given the same inputs.
"""
import copy
import inspect
from contextlib import nullcontext

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextModel, CLIPTokenizer

from . import GoldenFile, seeded

UNET_BLOCKS = (
    "Timesteps", "TimestepEmbedding", "ResnetBlock2D", "Transformer2DModel", "BasicTransformerBlock", "Attention",
    "FeedForward", "Downsample2D", "Upsample2D", "DownBlock2D", "CrossAttnDownBlock2D", "UNetMidBlock2DCrossAttn",
    "CrossAttnUpBlock2D", "UpBlock2D",
)
VAE_BLOCKS = (
    "ResnetBlock2D", "Attention", "Downsample2D", "Upsample2D", "DownEncoderBlock2D", "UNetMidBlock2D",
    "UpDecoderBlock2D",
)
TEXT_BLOCKS = ("CLIPTextEmbeddings", "CLIPAttention", "CLIPMLP", "CLIPEncoderLayer")

# The embedding of the raw number of a timestep is fp32 in both precisions, and has no weights.
FP32_ONLY = ("Timesteps", "CLIPTextEmbeddings")

PROMPTS = [
    "a photo of a green star on navy",
    "a rendering of the clean <thing>, in the style of nobody at all, with 2 moons; it's late",
]


def flatten(name, value, into):
    """Tensors in nested tuples, by name: `out`, or `out.0`, `out.1.2`; a tuple of one is that one."""
    if isinstance(value, torch.Tensor):
        into[name] = value
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            flatten(name if len(value) == 1 else f"{name}.{index}", item, into)
    elif hasattr(value, "to_tuple"):
        flatten(name, value.to_tuple(), into)
    return into


def cast(value, dtype):
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, (tuple, list)):
        return type(value)(cast(item, dtype) for item in value)
    return value


class Recorder:
    """Records the calls of a model's blocks while it runs in fp32, and replays them in bf16.

    `autocast`: the model's bf16 is fp32 weights under autocast (the text encoder) instead of bf16 weights.
    """

    def __init__(self, golden, model, block_classes, autocast=False):
        self.golden, self.model, self.block_classes, self.autocast = golden, model, block_classes, autocast
        self.bf16_model = model if autocast else copy.deepcopy(model).to(torch.bfloat16)
        self.golden.metadata.setdefault("cases", [])

    @torch.no_grad()
    def run(self, run_name, call):
        """`call(model)` runs the model; every block's call becomes a case `run_name/<path>`."""
        calls, hooks = [], []
        for path, block in self.model.named_modules():
            if type(block).__name__ in self.block_classes:
                def hook(block, args, kwargs, output, path=path):
                    calls.append((path, block, args, kwargs, output))
                hooks.append(block.register_forward_hook(hook, with_kwargs=True))
        try:
            call(self.model)
        finally:
            for hook in hooks:
                hook.remove()
        for path, block, args, kwargs, output in calls:
            self.record(f"{run_name}/{path}", path, block, args, kwargs, output)

    def record(self, case, path, block, args, kwargs, output):
        kind = type(block).__name__
        bound = inspect.signature(type(block).forward).bind(block, *args, **kwargs).arguments
        inputs = {}
        for name, value in bound.items():
            if name != "self":
                flatten(name, value, inputs)
        # Plain numbers that shape the result, such as the skip's size that an upsampler is given.
        numbers = {n: list(v) if isinstance(v, (tuple, torch.Size)) else v for n, v in bound.items()
                   if n in ("upsample_size", "output_size") and v is not None}
        self.golden.put_all(f"{case}/in", inputs)
        self.golden.put_all(f"{case}/fp32", flatten("out", output, {}))
        if kind not in FP32_ONLY:
            bf16_block = self.bf16_model.get_submodule(path)
            if self.autocast:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    bf16_output = bf16_block(*args, **kwargs)
            else:
                bf16 = torch.bfloat16
                bf16_output = bf16_block(*cast(args, bf16), **{n: cast(v, bf16) for n, v in kwargs.items()})
            self.golden.put_all(f"{case}/bf16", flatten("out", bf16_output, {}))
        self.golden.metadata["cases"].append({"case": case, "kind": kind, "path": path, "numbers": numbers})

    @torch.no_grad()
    def run_whole(self, case, inputs, call):
        """A case of the whole model: `call(model, **inputs)` returns its outputs by name."""
        self.golden.put_all(f"{case}/in", inputs)
        self.golden.put_all(f"{case}/fp32", call(self.model, **inputs))
        with torch.autocast("cpu", dtype=torch.bfloat16) if self.autocast else nullcontext():
            bf16_inputs = inputs if self.autocast else {n: cast(v, torch.bfloat16) for n, v in inputs.items()}
            self.golden.put_all(f"{case}/bf16", call(self.bf16_model, **bf16_inputs))
        self.golden.metadata["cases"].append({"case": case, "kind": "model", "path": "", "numbers": {}})


def make_text_goldens(checkpoint, path):
    model = CLIPTextModel.from_pretrained(checkpoint, subfolder="text_encoder").eval()
    tokenizer = CLIPTokenizer.from_pretrained(checkpoint, subfolder="tokenizer")
    ids = tokenizer(PROMPTS, padding="max_length", truncation=True, max_length=77, return_tensors="pt").input_ids
    golden = GoldenFile()
    recorder = Recorder(golden, model, TEXT_BLOCKS, autocast=True)
    recorder.run("blocks", lambda text: text(ids))
    recorder.run_whole("whole", {"input_ids": ids}, lambda text, input_ids: {"out": text(input_ids)[0]})
    golden.save(path)


def make_vae_goldens(checkpoint, path):
    model = AutoencoderKL.from_pretrained(checkpoint, subfolder="vae").eval()
    factor = 2 ** (len(model.config.block_out_channels) - 1)
    golden = GoldenFile()
    recorder = Recorder(golden, model, VAE_BLOCKS)

    def encode(vae, pixels):
        moments = vae.encode(pixels).latent_dist
        return {"mean": moments.mean, "logvar": moments.logvar}

    def decode(vae, latents):
        return {"out": vae.decode(latents).sample}

    # Odd latent sides, and a picture that is not square.
    for name, (height, width) in {"even": (8, 8), "odd": (5, 7)}.items():
        pixels = torch.rand(2, 3, height * factor, width * factor, generator=seeded(1)) * 2 - 1
        latents = torch.randn(2, model.config.latent_channels, height, width, generator=seeded(2))
        recorder.run(name, lambda vae: (encode(vae, pixels), decode(vae, latents)))
        recorder.run_whole(f"{name}/encode", {"pixels": pixels}, encode)
        recorder.run_whole(f"{name}/decode", {"latents": latents}, decode)
    golden.save(path)


def make_unet_goldens(checkpoint, path):
    model = UNet2DConditionModel.from_pretrained(checkpoint, subfolder="unet").eval()
    golden = GoldenFile()
    recorder = Recorder(golden, model, UNET_BLOCKS)

    def predict(unet, sample, timesteps, encoder_hidden_states):
        return {"out": unet(sample, timesteps, encoder_hidden_states).sample}

    for name, (height, width) in {"even": (8, 8), "odd": (7, 5), "wide": (8, 12)}.items():
        inputs = {
            "sample": torch.randn(2, model.config.in_channels, height, width, generator=seeded(3)),
            "timesteps": torch.tensor([7, 981]),
            "encoder_hidden_states": torch.randn(2, 77, model.config.cross_attention_dim, generator=seeded(4)),
        }
        if name != "wide":
            recorder.run(name, lambda unet: predict(unet, **inputs))
        recorder.run_whole(f"{name}/whole", inputs, predict)
    golden.save(path)
