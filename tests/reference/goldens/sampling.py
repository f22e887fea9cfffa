"""Goldens of DDIM: the scheduler alone, and whole pipelines with classifier-free guidance."""
import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline

from . import GoldenFile, seeded

BETAS = dict(num_train_timesteps=1000, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")


def ddim_configs():
    for prediction_type in ("epsilon", "v_prediction"):
        for spacing in ("leading", "trailing", "linspace"):
            yield dict(prediction_type=prediction_type, timestep_spacing=spacing, steps_offset=1,
                       set_alpha_to_one=False, clip_sample=False)
        yield dict(prediction_type=prediction_type, timestep_spacing="leading", steps_offset=0,
                   set_alpha_to_one=True, clip_sample=True)
    yield dict(prediction_type="v_prediction", timestep_spacing="trailing", steps_offset=0, set_alpha_to_one=False,
               clip_sample=False, rescale_betas_zero_snr=True)


def make_ddim_goldens(path):
    """The scheduler alone: what it makes of given model outputs."""
    golden = GoldenFile()
    golden.metadata["cases"] = {}
    for config in ddim_configs():
        for steps in (20, 7):
            case = "-".join(str(config[key]) for key in ("prediction_type", "timestep_spacing", "steps_offset"))
            case = f"{case}-steps-{steps}"
            scheduler = DDIMScheduler(**BETAS, **config)
            scheduler.set_timesteps(steps)
            outputs = torch.randn(steps, 1, 4, 3, 5, generator=seeded(40))
            latents = [torch.randn(1, 4, 3, 5, generator=seeded(41))]
            for output, timestep in zip(outputs, scheduler.timesteps):
                latents.append(scheduler.step(output, timestep, latents[-1]).prev_sample)
            golden.put(f"{case}/timesteps", scheduler.timesteps)
            golden.put(f"{case}/model_outputs", outputs)
            golden.put(f"{case}/latents", torch.stack(latents))
            golden.metadata["cases"][case] = {**BETAS, **config, "steps": steps}
    golden.save(path)


@torch.no_grad()
def make_pipeline_goldens(checkpoint, path):
    """A whole picture: text, UNet, DDIM with guidance, VAE decoder, in fp32."""
    pipeline = StableDiffusionPipeline.from_pretrained(checkpoint, safety_checker=None)
    pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)
    pipeline.set_progress_bar_config(disable=True)
    golden = GoldenFile()
    golden.metadata["cases"] = {}
    for guidance, steps, (height, width) in ((7.5, 20, (8, 8)), (4.0, 5, (7, 5)), (1.0, 5, (8, 8))):
        case = f"guidance-{guidance}-steps-{steps}-side-{height}x{width}"
        prompt = "a photo of a green star on navy"
        channels = pipeline.unet.config.in_channels
        noise = torch.randn(1, channels, height, width, generator=seeded(50))
        # The size is that of the latents; the pipeline only checks that the one it is told is a multiple of 8.
        final = pipeline(
            prompt, num_inference_steps=steps, guidance_scale=guidance, height=64, width=64, latents=noise.clone(),
            output_type="latent").images
        pixels = pipeline.vae.decode(final / pipeline.vae.config.scaling_factor).sample
        tokenize = lambda text: pipeline.tokenizer(
            text, padding="max_length", truncation=True, max_length=77, return_tensors="pt").input_ids
        golden.put_all(case, {
            "input_ids": tokenize(prompt), "negative_input_ids": tokenize(""), "noise": noise, "latents": final,
            "pixels": pixels})
        golden.metadata["cases"][case] = {"prompt": prompt, "guidance_scale": guidance, "steps": steps}
    golden.save(path)
