"""Goldens of whole pipelines with classifier-free guidance."""
import torch
from diffusers import EulerAncestralDiscreteScheduler, StableDiffusionPipeline

from . import GoldenFile, seeded
from .samplers import SAMPLERS


@torch.no_grad()
def make_pipeline_goldens(checkpoint, path):
    """A whole picture: text, UNet, sampler with guidance, VAE decoder, in fp32."""
    pipeline = StableDiffusionPipeline.from_pretrained(checkpoint, safety_checker=None)
    own_config = pipeline.scheduler.config
    pipeline.set_progress_bar_config(disable=True)
    golden = GoldenFile()
    golden.metadata["cases"] = {}
    cases = [("ddim", 7.5, 20, (8, 8)), ("ddim", 4.0, 5, (7, 5)), ("ddim", 1.0, 5, (8, 8))]
    cases += [(name, 4.0, 8, (8, 8)) for name in SAMPLERS if name != "ddim"]
    for name, guidance, steps, (height, width) in cases:
        scheduler_class, more = SAMPLERS[name]
        pipeline.scheduler = scheduler_class.from_config(own_config, **more)
        case = f"{name}-guidance-{guidance}-steps-{steps}-side-{height}x{width}"
        prompt = "a photo of a green star on navy"
        channels = pipeline.unet.config.in_channels
        noise = torch.randn(1, channels, height, width, generator=seeded(50))
        # The size is that of the latents; the pipeline only checks that the one it is told is a multiple of 8.
        final = pipeline(
            prompt, num_inference_steps=steps, guidance_scale=guidance, height=64, width=64, latents=noise.clone(),
            generator=seeded(51), output_type="latent").images
        pixels = pipeline.vae.decode(final / pipeline.vae.config.scaling_factor).sample
        tokenize = lambda text: pipeline.tokenizer(
            text, padding="max_length", truncation=True, max_length=77, return_tensors="pt").input_ids
        golden.put_all(case, {
            "input_ids": tokenize(prompt), "negative_input_ids": tokenize(""), "noise": noise, "latents": final,
            "pixels": pixels})
        if scheduler_class is EulerAncestralDiscreteScheduler:
            # The pipeline draws nothing else from its generator: it was given the latents.
            draws = seeded(51)
            golden.put(f"{case}/step_noise", torch.stack([torch.randn(noise.shape, generator=draws)
                                                          for _ in range(steps)]))
        golden.metadata["cases"][case] = {"sampler": name, "prompt": prompt, "guidance_scale": guidance, "steps": steps}
    golden.save(path)
