"""Goldens of a UNet whose own weights are trained: whole microbatches with the gradients of all of its parameters, by diffusers."""
import torch

from . import GoldenFile
from .lora import LoraReference
from .training import random_microbatch

CASES = {"plain": 0.0, "snr": 1.0}


class WholeReference(LoraReference):
    """A checkpoint whose UNet is trained as train_text_to_image.py does: fp32 weights, with mixed precision "bf16" under autocast;
    text encoder and noising in fp32 as Ringtune has them."""

    def __init__(self, checkpoint, precision, snr_gamma):
        super().__init__(checkpoint, "no", rank=1, alpha=1, snr_gamma=snr_gamma)
        if precision == "bf16":
            self.weight_dtype = torch.bfloat16
        self.unet.requires_grad_(True)
        self.factors = dict(sorted(self.unet.named_parameters()))


def make_whole_goldens(checkpoint, path):
    golden = GoldenFile()
    golden.metadata["cases"] = {}
    for seed, (case, snr_gamma) in enumerate(CASES.items(), 500):
        inputs = random_microbatch(checkpoint, 1, 2, (8, 8) if seed % 2 else (7, 5), seed)
        golden.metadata["cases"][case] = {"snr_gamma": snr_gamma}
        for name, precision in (("fp32", "no"), ("bf16", "bf16")):
            reference = WholeReference(checkpoint, precision, snr_gamma)
            # No word is learned here.
            inputs["input_ids"][inputs["input_ids"] >= reference.first_placeholder] = 320
            inputs.pop("embeds", None)
            factors = {name: factor.detach().clone() for name, factor in reference.factors.items()}
            loss, gradients = reference.microbatch(factors, **inputs)
            golden.put(f"{case}/{name}/loss", loss)
            golden.put_all(f"{case}/{name}/grad", gradients)
        golden.put_all(f"{case}/in", inputs)
    golden.save(path)
