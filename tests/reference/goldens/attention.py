"""Goldens of attention in the widths, lengths and sharpness of full-size networks, with gradients.

The tiny checkpoints' heads are 8 to 16 wide and see at most 100 positions, which a kernel made for the real sizes may
leave to another one.
"""
import copy

import torch
from diffusers.models.attention_processor import Attention
from safetensors.torch import save_file

from . import GoldenFile, seeded

# name: batch, positions, channels, heads, keys of the text (None: self-attention), width of the text
CASES = {
    "sd15-self-40": (1, 1024, 320, 8, None, 320),
    "sd15-self-80": (1, 256, 320, 4, None, 320),
    "sd15-self-160": (2, 64, 320, 2, None, 320),
    "sd2-self-64": (1, 1024, 320, 5, None, 320),
    "sd15-cross-40": (2, 1024, 320, 8, 77, 96),
    "sd2-cross-64": (1, 576, 128, 2, 77, 128),
    "ragged-self-40": (1, 999, 80, 2, None, 80),
    "ragged-cross-72": (1, 333, 144, 2, 77, 48),
    "one-position": (2, 1, 64, 2, 77, 48),
    "one-wide-head": (1, 400, 512, 1, None, 512),
}


def run(attention, inputs, out_grad):
    """The output and the gradients of the inputs, by name."""
    leaves = {name: tensor.clone().requires_grad_(True) for name, tensor in inputs.items()}
    output = attention(leaves["x"], encoder_hidden_states=leaves.get("context"))
    output.backward(out_grad)
    return {"out": output, **{f"grad_{name}": leaf.grad for name, leaf in leaves.items()}}


def make_attention_goldens(path, weights_path):
    golden, weights = GoldenFile(), {}
    golden.metadata["cases"] = {}
    for name, (batch, positions, channels, heads, keys, width) in CASES.items():
        torch.manual_seed(len(weights))
        attention = Attention(channels, cross_attention_dim=None if keys is None else width, heads=heads,
                              dim_head=channels // heads).requires_grad_(False)
        # Sharper than fresh weights are, so that the softmax has something to do.
        attention.to_q.weight.mul_(3)
        attention.to_k.weight.mul_(3)
        inputs = {"x": torch.randn(batch, positions, channels, generator=seeded(70))}
        if keys is not None:
            inputs["context"] = torch.randn(batch, keys, width, generator=seeded(71))
        out_grad = torch.randn(batch, positions, channels, generator=seeded(72))
        golden.put_all(f"{name}/in", {**inputs, "out_grad": out_grad})
        golden.put_all(f"{name}/fp32", run(attention, inputs, out_grad))
        bf16 = torch.bfloat16
        bf16_inputs = {n: t.to(bf16) for n, t in inputs.items()}
        golden.put_all(f"{name}/bf16", run(copy.deepcopy(attention).to(bf16), bf16_inputs, out_grad.to(bf16)))
        weights |= {f"{name}.{key}": tensor for key, tensor in attention.state_dict().items()}
        golden.metadata["cases"][name] = {"channels": channels, "heads": heads, "context_width": width}
    golden.save(path)
    save_file(weights, weights_path, {"format": "pt"})
