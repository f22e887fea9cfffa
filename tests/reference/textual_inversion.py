"""One microbatch of diffusers' textual_inversion.py: the loss and the gradient of the learned rows.

The arithmetic is that of the script under accelerate: with mixed precision "bf16" the UNet's weights are bf16, the
text encoder's fp32 under autocast, latents and noise are bf16 before the noising, and the loss is taken in fp32.
With a gamma the loss is that of diffusers' train_text_to_image.py with --snr_gamma.
"""
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DConditionModel
from diffusers.training_utils import compute_snr
from transformers import CLIPTextModel

# The script's defaults: --adam_beta1, --adam_beta2, --adam_weight_decay, --adam_epsilon.
ADAMW = dict(betas=(0.9, 0.999), weight_decay=1e-2, eps=1e-8)


def min_snr_weights(scheduler, timesteps, gamma):
    """train_text_to_image.py's mse_loss_weights, [b]."""
    snr = compute_snr(scheduler, timesteps)
    weights = torch.stack([snr, gamma * torch.ones_like(timesteps)], dim=1).min(dim=1)[0]
    if scheduler.config.prediction_type == "v_prediction":
        return weights / (snr + 1)
    weights = weights / snr
    # 0 / 0, where a schedule ends in pure noise: the script's own weight before it was left out there.
    weights[snr == 0] = 1.0
    return weights


class Reference:
    """A checkpoint's UNet, text encoder and noise schedule, ready for `microbatch`.

    The placeholder tokens' ids count up from the number of rows that the checkpoint's token table has.
    """

    def __init__(self, checkpoint, num_vectors, precision):
        assert precision in ("no", "bf16"), precision
        checkpoint = Path(checkpoint)
        self.weight_dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.unet = UNet2DConditionModel.from_pretrained(checkpoint, subfolder="unet")
        self.unet.to(self.weight_dtype).requires_grad_(False)
        self.text_encoder = CLIPTextModel.from_pretrained(checkpoint, subfolder="text_encoder", dtype=torch.float32)
        self.text_encoder.requires_grad_(False)
        self.first_placeholder = self.text_encoder.get_input_embeddings().weight.shape[0]
        self.placeholders = slice(self.first_placeholder, self.first_placeholder + num_vectors)
        self.text_encoder.resize_token_embeddings(self.placeholders.stop, mean_resizing=False)
        self.token_table = self.text_encoder.get_input_embeddings().weight.requires_grad_(True)
        self.scheduler = DDPMScheduler.from_pretrained(checkpoint, subfolder="scheduler")

    def encode_text(self, input_ids):
        """Hidden states [b, 77, width] as the UNet gets them."""
        bf16 = self.weight_dtype == torch.bfloat16
        with torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else nullcontext():
            hidden = self.text_encoder(input_ids)[0]
        # accelerate hands a prepared model's outputs back in fp32.
        return hidden.float().to(self.weight_dtype)

    def microbatch(self, embeds, latents, noise, timesteps, input_ids, snr_gamma=0.0):
        """Loss (a float tensor of one value) and its gradient [num_vectors, width] at the rows `embeds`, in fp32."""
        with torch.no_grad():
            self.token_table[self.placeholders] = embeds
        self.token_table.grad = None
        latents, noise = latents.to(self.weight_dtype), noise.to(self.weight_dtype)
        noisy_latents = self.scheduler.add_noise(latents, noise, timesteps)
        prediction = self.unet(noisy_latents, timesteps, self.encode_text(input_ids)).sample
        if self.scheduler.config.prediction_type == "v_prediction":
            target = self.scheduler.get_velocity(latents, noise, timesteps)
        else:
            assert self.scheduler.config.prediction_type == "epsilon", self.scheduler.config.prediction_type
            target = noise
        if snr_gamma:
            loss = F.mse_loss(prediction.float(), target.float(), reduction="none")
            weights = min_snr_weights(self.scheduler, timesteps, snr_gamma)
            loss = (loss.mean(dim=list(range(1, len(loss.shape)))) * weights).mean()
        else:
            loss = F.mse_loss(prediction.float(), target.float(), reduction="mean")
        loss.backward()
        return loss.detach().reshape(1), self.token_table.grad[self.placeholders].clone()
