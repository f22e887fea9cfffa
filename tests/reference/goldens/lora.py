"""Goldens of adapters (LoRA): whole microbatches with the gradients of all factors, by diffusers and PEFT."""
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from peft import LoraConfig

from textual_inversion import Reference, min_snr_weights

from . import GoldenFile, seeded
from .training import random_microbatch

# train_text_to_image_lora.py's own, and the text encoder's of train_dreambooth_lora.py; what kohya's scripts train.
ATTENTION = ["to_k", "to_q", "to_v", "to_out.0"]
TEXT_ATTENTION = ["q_proj", "k_proj", "v_proj", "out_proj"]
ALL = ATTENTION + ["proj_in", "proj_out", "ff.net.0.proj", "ff.net.2"]
CONVOLUTIONS = ["conv1", "conv2", "conv_shortcut", "time_emb_proj", "downsamplers.0.conv", "upsamplers.0.conv"]
CASES = {
    "attention": dict(rank=4, alpha=4, unet=ATTENTION),
    "queries": dict(rank=3, alpha=1, unet=["to_q"]),
    "all": dict(rank=2, alpha=3, unet=ALL, text=TEXT_ATTENTION + ["fc1", "fc2"]),
    "text": dict(rank=5, alpha=5, text=TEXT_ATTENTION),
    "snr": dict(rank=4, alpha=2, unet=ATTENTION, snr_gamma=1.0),
    "dora": dict(rank=3, alpha=2, unet=ALL, text=TEXT_ATTENTION, dora=True),
    "convolutions": dict(rank=2, alpha=3, unet=CONVOLUTIONS),
    "extras": dict(rank=4, alpha=4, unet=["to_q"], extras=True),
}


class LoraReference(Reference):
    """A checkpoint with adapters: with mixed precision "bf16" the frozen weights are bf16 and the adapters fp32 under autocast,
    the text encoder and noising in fp32 as Ringtune has them."""

    def __init__(self, checkpoint, precision, rank, alpha, unet=(), text=(), snr_gamma=0.0, dora=False, extras=False):
        super().__init__(checkpoint, 0, precision)
        self.token_table.requires_grad_(False)
        self.snr_gamma = snr_gamma
        options = dict(r=rank, lora_alpha=alpha, init_lora_weights="gaussian", use_dora=dora)
        self.networks = {}
        for name, network, targets in (("unet", self.unet, unet), ("text_encoder", self.text_encoder, text)):
            if targets:
                network.add_adapter(LoraConfig(target_modules=list(targets), **options))
                self.networks[name] = network
        self.factors = dict(sorted(self.all_factors()))
        for factor in self.factors.values():
            factor.data = factor.data.float()

    def all_factors(self):
        for component, network in self.networks.items():
            for name, parameter in network.named_parameters():
                if "lora_" in name:
                    name = name.replace(".default.", ".").removesuffix(".default")
                    name = name.replace("lora_magnitude_vector.weight", "lora_magnitude_vector")
                    if component == "text_encoder" and not name.startswith("text_model."):
                        name = f"text_model.{name}"
                    yield f"{component}.{name}", parameter

    def microbatch(self, factors, latents, noise, timesteps, input_ids, perturbation=None, loss_mask=None, sample_weights=None):
        """Loss (one value), and the gradient of every factor, in fp32."""
        for name, factor in self.factors.items():
            factor.data.copy_(factors[name])
            factor.grad = None
        bf16 = self.weight_dtype == torch.bfloat16
        perturbed = noise if perturbation is None else noise + perturbation
        noisy = self.scheduler.add_noise(latents, perturbed, timesteps)
        hidden = self.text_encoder(input_ids)[0]
        with torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else nullcontext():
            prediction = self.unet(noisy.to(self.weight_dtype), timesteps, hidden.to(self.weight_dtype)).sample
        velocity = self.scheduler.config.prediction_type == "v_prediction"
        target = self.scheduler.get_velocity(latents, noise, timesteps) if velocity else noise
        if self.snr_gamma:
            weights = min_snr_weights(self.scheduler, timesteps, self.snr_gamma)
            loss = F.mse_loss(prediction.float(), target, reduction="none")
            loss = (loss.mean(dim=list(range(1, len(loss.shape)))) * weights).mean()
        elif loss_mask is not None:
            # kohya's apply_masked_loss, and weights of samples as its loss_weights.
            loss = F.mse_loss(prediction.float(), target, reduction="none") * loss_mask.unsqueeze(1)
            loss = (loss.mean(dim=list(range(1, len(loss.shape)))) * sample_weights).mean()
        else:
            loss = F.mse_loss(prediction.float(), target)
        loss.backward()
        return loss.detach().reshape(1), {name: factor.grad.clone() for name, factor in self.factors.items()}


def drawn(name, factor, generator):
    """A factor's values: of lengths those that the weight's rows have, but for some."""
    values = torch.randn(factor.shape, generator=generator)
    if "magnitude" in name:
        return factor.detach().float() * (1.0 + 0.2 * values)
    return values * (0.1 if "lora_B" in name else 0.3)


def make_lora_goldens(checkpoint, path):
    golden = GoldenFile()
    golden.metadata["cases"] = {}
    for seed, (case, options) in enumerate(CASES.items(), 400):
        references = {name: LoraReference(checkpoint, p, **options) for name, p in (("fp32", "no"), ("bf16", "bf16"))}
        generator = seeded(seed)
        # Second factors that are no zeros, so that the first ones have a gradient.
        factors = {
            name: drawn(name, factor, generator)
            for name, factor in references["fp32"].factors.items()
        }
        inputs = random_microbatch(checkpoint, 1, 2, (8, 8) if seed % 2 else (7, 5), seed)
        # No word is learned here.
        vocabulary = references["fp32"].first_placeholder
        inputs["input_ids"][inputs["input_ids"] >= vocabulary] = 320
        del inputs["embeds"]
        if options.get("extras"):
            latents = inputs["latents"]
            inputs["perturbation"] = 0.1 * torch.randn(latents.shape, generator=generator)
            inputs["loss_mask"] = torch.rand((latents.shape[0], *latents.shape[2:]), generator=generator)
            inputs["sample_weights"] = torch.tensor([2.0, 0.5])
        golden.metadata["cases"][case] = {k: options.get(k, 0) for k in ("rank", "alpha", "snr_gamma", "dora")}
        golden.put_all(f"{case}/in", inputs)
        golden.put_all(f"{case}/factors", factors)
        for name, reference in references.items():
            loss, gradients = reference.microbatch(factors, **inputs)
            golden.put(f"{case}/{name}/loss", loss)
            golden.put_all(f"{case}/{name}/grad", gradients)
    golden.save(path)
