"""A trace as Ringtune's `[debug] trace_dir` writes it, made by the reference itself."""
import torch
from safetensors.torch import save_file

from textual_inversion import ADAMW, Reference

from .training import random_microbatch

STEPS, MICROBATCHES, NUM_VECTORS = 6, 2, 2


def write_reference_trace(checkpoint, folder):
    """Six steps of two microbatches in fp32, with a warm-up (so the first lr is 0)."""
    folder.mkdir()
    reference = Reference(checkpoint, NUM_VECTORS, "no")
    first = random_microbatch(checkpoint, NUM_VECTORS, 2, (8, 8), seed=0)
    embeds = first["embeds"].clone().requires_grad_(True)
    optimizer = torch.optim.AdamW([embeds], lr=1.0, **ADAMW)
    for step in range(1, STEPS + 1):
        before, grads = embeds.detach().clone(), []
        for index in range(MICROBATCHES):
            inputs = random_microbatch(checkpoint, NUM_VECTORS, 2, (8, 8), seed=1000 * step + index)
            inputs["embeds"] = before
            loss, grad = reference.microbatch(**inputs)
            grads.append(grad)
            del inputs["embeds"]
            save_file({**inputs, "loss": loss, "grad": grad}, folder / f"step-{step:06}-mb-{index:04}.safetensors")
        lr = 5e-3 * min(1.0, (step - 1) / 2)
        optimizer.param_groups[0]["lr"] = lr
        embeds.grad = sum(grads) / MICROBATCHES
        optimizer.step()
        save_file({
            "embeds_before": before, "embeds_after": embeds.detach().clone(), "grad_reduced": embeds.grad.clone(),
            "lr": torch.tensor([lr]),
        }, folder / f"step-{step:06}.safetensors")
