"""Goldens of the samplers alone: whole walks of diffusers' schedulers, with a formula in the network's place."""
import types

import numpy as np
import torch
from diffusers import (DDIMScheduler, DPMSolverMultistepScheduler, EulerAncestralDiscreteScheduler,
                       EulerDiscreteScheduler, PNDMScheduler, StableDiffusionPipeline)
from diffusers.schedulers import scheduling_lms_discrete

from . import GoldenFile, seeded

BETAS = dict(num_train_timesteps=1000, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
# What Stable Diffusion 1.5 has on disk. It names no spacing: each class then takes its own default.
SD15 = dict(**BETAS, clip_sample=False, set_alpha_to_one=False, skip_prk_steps=True, steps_offset=1)
SHAPE = (1, 4, 3, 5)


def quad(function, start, end, epsrel):
    """What LMS needs scipy for, which is not installed: the integral of a polynomial of degree 3 at most."""
    places, weights = np.polynomial.legendre.leggauss(21)
    middle, half = (float(start) + float(end)) / 2, (float(end) - float(start)) / 2
    return half * sum(weight * float(function(middle + half * place)) for place, weight in zip(places, weights)), 0.0


scheduling_lms_discrete.integrate = types.SimpleNamespace(quad=quad)

# Name on ringtune's command line -> class, and what it adds to a checkpoint's config.
SAMPLERS = {
    "ddim": (DDIMScheduler, {}),
    "pndm": (PNDMScheduler, {}),
    "euler": (EulerDiscreteScheduler, {}),
    "euler_a": (EulerAncestralDiscreteScheduler, {}),
    "dpm++_2m": (DPMSolverMultistepScheduler, {}),
    "dpm++_2m_karras": (DPMSolverMultistepScheduler, {"use_karras_sigmas": True}),
    "lms": (scheduling_lms_discrete.LMSDiscreteScheduler, {}),
}


def configs():
    """(case, sampler, keys of its own class on top of BETAS, steps)"""
    for name in SAMPLERS:
        base = {"ddim": dict(clip_sample=False, set_alpha_to_one=False), "pndm": dict(skip_prk_steps=True)}.get(name, {})
        for prediction in ("epsilon", "v_prediction"):
            for spacing in ("leading", "trailing", "linspace"):
                keys = dict(prediction_type=prediction, timestep_spacing=spacing, steps_offset=1, **base)
                yield f"{name}-{prediction}-{spacing}", name, keys, 20
                yield f"{name}-{prediction}-{spacing}-7-steps", name, keys, 7
            yield f"{name}-{prediction}-defaults", name, dict(prediction_type=prediction), 20
        yield f"{name}-one-step", name, dict(prediction_type="epsilon", timestep_spacing="trailing", **base), 1
        if name not in ("pndm", "lms"):
            keys = dict(prediction_type="v_prediction", timestep_spacing="trailing", rescale_betas_zero_snr=True, **base)
            yield f"{name}-zero-snr", name, keys, 20
    for prediction in ("epsilon", "v_prediction"):
        yield f"ddim-{prediction}-to-one", "ddim", dict(prediction_type=prediction, clip_sample_range=1.5), 20
        for spacing in ("leading", "trailing", "linspace"):
            for to_one in (False, True):
                keys = dict(prediction_type=prediction, timestep_spacing=spacing, set_alpha_to_one=to_one)
                yield f"pndm-{prediction}-{spacing}-runge-kutta-{to_one}", "pndm", {**keys, "skip_prk_steps": False}, 20
        for name in ("euler", "lms"):
            keys = dict(prediction_type=prediction, use_karras_sigmas=True)
            yield f"{name}-{prediction}-karras", name, keys, 20
        for end, steps in (("zero", 20), ("sigma_min", 20), ("sigma_min", 7)):
            for name in ("euler", "dpm++_2m", "dpm++_2m_karras"):
                keys = dict(prediction_type=prediction, final_sigmas_type=end)
                yield f"{name}-{prediction}-ends-{end}-{steps}", name, keys, steps
        for key, value in (("solver_type", "heun"), ("solver_order", 1), ("euler_at_final", True),
                           ("lower_order_final", False)):
            keys = dict(prediction_type=prediction, final_sigmas_type="sigma_min", **{key: value})
            yield f"dpm++_2m-{prediction}-{key}", "dpm++_2m", keys, 20
    # Without Karras' levels: there diffusers visits the first timestep of this schedule twice, and fails.
    for spacing in ("leading", "trailing", "linspace"):
        keys = dict(beta_schedule="squaredcos_cap_v2", lambda_min_clipped=-5.1, timestep_spacing=spacing)
        yield f"dpm++_2m-{spacing}-cosine", "dpm++_2m", keys, 20


def predict(scheduler, sample, timestep, target):
    """Stands in for the network: what it would say if it held the sample for a noisy picture near `target`."""
    alpha = float(scheduler.alphas_cumprod[min(int(timestep), 999)])
    signal, noise = alpha ** 0.5, (1 - alpha) ** 0.5
    clean = torch.tanh(0.6 * sample) + target
    epsilon = (sample - signal * clean) / noise
    return epsilon if scheduler.config.prediction_type == "epsilon" else signal * epsilon - noise * clean


def walk(golden, case, scheduler, steps):
    scheduler.set_timesteps(steps)
    target = 0.5 * torch.randn(SHAPE, generator=seeded(60))
    noise = torch.randn(SHAPE, generator=seeded(61))
    latents, inputs, outputs = [noise * scheduler.init_noise_sigma], [], []
    draws, same_draws = seeded(62), seeded(62)
    takes_noise = isinstance(scheduler, EulerAncestralDiscreteScheduler)
    for timestep in scheduler.timesteps:
        inputs.append(scheduler.scale_model_input(latents[-1], timestep))
        outputs.append(predict(scheduler, inputs[-1], timestep, target))
        more = {"generator": draws} if takes_noise else {}
        latents.append(scheduler.step(outputs[-1], timestep, latents[-1], **more).prev_sample)
    assert all(torch.isfinite(one).all() for one in latents), case
    golden.put(f"{case}/timesteps", scheduler.timesteps.to(torch.float32))
    golden.put(f"{case}/noise", noise)
    golden.put(f"{case}/model_inputs", torch.stack(inputs))
    golden.put(f"{case}/model_outputs", torch.stack(outputs))
    golden.put(f"{case}/latents", torch.stack(latents))
    if takes_noise:
        golden.put(f"{case}/step_noise", torch.stack([torch.randn(SHAPE, generator=same_draws) for _ in range(steps)]))


# What old files have, or have not.
OLD = ({}, {"steps_offset": 0}, {"steps_offset": 3, "timestep_spacing": "leading"}, {"clip_sample": True},
       {"clip_sample": True, "steps_offset": 0}, {"clip_sample": False, "steps_offset": 1})


def in_pipelines():
    """What a pipeline makes of a file when it is loaded with the class `own`, and what then comes of it in `wanted`'s:
    (own, wanted, the file's keys, all keys of the scheduler)."""
    for own, (own_class, own_more) in SAMPLERS.items():
        for wanted, (wanted_class, more) in SAMPLERS.items():
            for old in OLD:
                keys = {**BETAS, **old, **own_more}
                pipeline = StableDiffusionPipeline(
                    vae=None, text_encoder=None, tokenizer=None, unet=None, scheduler=own_class.from_config(keys),
                    safety_checker=None, feature_extractor=None, requires_safety_checker=False)
                scheduler = pipeline.scheduler
                if own != wanted:
                    scheduler = wanted_class.from_config(scheduler.config, **more)
                yield own, wanted, keys, scheduler.to_json_string()


def make_sampler_goldens(path):
    golden = GoldenFile()
    golden.metadata["pipelines"] = [
        {"own": own, "wanted": wanted, "file": keys, "scheduler": scheduler}
        for own, wanted, keys, scheduler in in_pipelines()]
    golden.metadata["cases"] = {}
    for case, name, keys, steps in configs():
        scheduler_class, more = SAMPLERS[name]
        keys = {**BETAS, **keys, **more}
        if keys["beta_schedule"] == "squaredcos_cap_v2":
            keys = {key: value for key, value in keys.items() if key not in ("beta_start", "beta_end")}
        if name == "pndm" and steps == 1:
            keys["skip_prk_steps"] = True
        walk(golden, case, scheduler_class(**keys), steps)
        config = {**keys, "_class_name": scheduler_class.__name__}
        golden.metadata["cases"][case] = {"sampler": name, "config": config, "steps": steps}
    # Another sampler than the checkpoint's own.
    own = PNDMScheduler.from_config(SD15)
    golden.metadata["saved"] = {}
    for name, (scheduler_class, more) in SAMPLERS.items():
        case = f"{name}-in-place-of-the-checkpoint's"
        scheduler = scheduler_class.from_config(own.config, **more)
        walk(golden, case, scheduler, 20)
        # With every default written out, and -Infinity, which is no JSON.
        golden.metadata["saved"][name] = scheduler.to_json_string()
        golden.metadata["cases"][case] = {"sampler": name, "config": SD15, "steps": 20}
    golden.save(path)
