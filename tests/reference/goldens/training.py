"""Goldens of the training step's parts: noise schedules, posterior sampling, AdamW, lr schedules, and its whole."""
import torch
from diffusers import DDPMScheduler, UNet2DConditionModel
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.optimization import get_scheduler
from transformers import CLIPTextModel, CLIPTokenizer

from textual_inversion import ADAMW, Reference, min_snr_weights

from . import GoldenFile, seeded, write_json

NOISE_SCHEDULES = {
    "linear": dict(beta_schedule="linear", beta_start=0.0001, beta_end=0.02, num_train_timesteps=1000),
    "scaled_linear": dict(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, num_train_timesteps=1000),
    "squaredcos_cap_v2": dict(beta_schedule="squaredcos_cap_v2", num_train_timesteps=1000),
    "linear_100": dict(beta_schedule="linear", beta_start=0.001, beta_end=0.2, num_train_timesteps=100),
    "zero_snr": dict(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, num_train_timesteps=1000,
                     rescale_betas_zero_snr=True),
    "trained": dict(trained_betas=[0.01, 0.03, 0.02, 0.2, 0.4, 0.5, 0.3, 0.9], num_train_timesteps=8),
}


def make_noise_schedule_goldens(path):
    golden = GoldenFile()
    latents, noise = torch.randn(2, 6, 4, 5, 3, generator=seeded(10)).unbind(0)
    golden.put("latents", latents)
    golden.put("noise", noise)
    for name, config in NOISE_SCHEDULES.items():
        scheduler = DDPMScheduler(**config)
        last = config["num_train_timesteps"] - 1
        timesteps = torch.tensor([0, 1, min(17, last), last // 2, last - 1, last])
        golden.put(f"{name}/alphas_cumprod", scheduler.alphas_cumprod)
        golden.put(f"{name}/timesteps", timesteps)
        for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            arguments = latents.to(dtype), noise.to(dtype), timesteps
            golden.put(f"{name}/{precision}/add_noise", scheduler.add_noise(*arguments))
            golden.put(f"{name}/{precision}/get_velocity", scheduler.get_velocity(*arguments))
        for prediction_type in ("epsilon", "v_prediction"):
            scheduler.register_to_config(prediction_type=prediction_type)
            for gamma in (5, 1):
                weights = min_snr_weights(scheduler, timesteps, gamma)
                golden.put(f"{name}/{prediction_type}/min_snr_{gamma}", weights)
    golden.metadata["schedules"] = NOISE_SCHEDULES
    golden.save(path)


def make_posterior_goldens(path):
    golden = GoldenFile()
    moments = torch.randn(2, 8, 3, 5, generator=seeded(20))
    moments[:, 4:] *= 3
    # Beyond the bounds that diffusers clamps the log-variance to.
    moments[0, 4, 0, 0], moments[1, 5, 1, 1] = -45.0, 25.0
    posterior = DiagonalGaussianDistribution(moments)
    golden.put("moments", moments)
    golden.put("mean", posterior.mean)
    golden.put("logvar", posterior.logvar)
    noise = torch.randn(posterior.mean.shape, generator=seeded(21))
    golden.put("noise", noise)
    golden.put("sample", posterior.mean + posterior.std * noise)
    # That this is what diffusers samples, given that noise.
    assert torch.equal(posterior.sample(generator=seeded(21)), golden.tensors["sample"])
    golden.save(path)


def make_adamw_goldens(path):
    golden, steps, shape = GoldenFile(), 50, (3, 32)
    grads = torch.randn(steps, *shape, generator=seeded(30)) * torch.logspace(-6, 1, steps)[:, None, None]
    grads[7] = 0
    falling = torch.linspace(1e-2, 0, steps, dtype=torch.float64)
    cases = {
        "default": dict(lrs=torch.full((steps,), 5e-3, dtype=torch.float64), **ADAMW),
        "falling_lr": dict(lrs=falling, **ADAMW),
        "no_decay": dict(lrs=falling, betas=(0.8, 0.99), weight_decay=0.0, eps=1e-6),
    }
    golden.metadata["cases"] = {}
    for name, options in cases.items():
        lrs = options.pop("lrs")
        weights = torch.randn(shape, generator=seeded(31)).mul(0.02).requires_grad_(True)
        optimizer = torch.optim.AdamW([weights], lr=1.0, **options)
        trajectory = [weights.detach().clone()]
        for grad, lr in zip(grads, lrs.tolist()):
            optimizer.param_groups[0]["lr"] = lr
            weights.grad = grad.clone()
            optimizer.step()
            trajectory.append(weights.detach().clone())
        # lr as it was used: a 64-bit number.
        golden.metadata["cases"][name] = {**options, "lrs": lrs.tolist()}
        golden.put(f"{name}/weights", torch.stack(trajectory))
    golden.put("grads", grads)
    golden.save(path)


def learning_rates(name, base, warmup_steps, total_steps, steps, cycles):
    """What each of the optimizer's steps 1..steps is taken with."""
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=base)
    schedule = get_scheduler(
        name, optimizer=optimizer, num_warmup_steps=warmup_steps, num_training_steps=total_steps, num_cycles=cycles)
    values = [optimizer.param_groups[0]["lr"]]
    while len(values) < steps:
        optimizer.step()
        schedule.step()
        values.append(optimizer.param_groups[0]["lr"])
    return values


def make_lr_schedule_goldens(path):
    names = ("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup")
    cases = []
    for name in names:
        for base, warmup_steps, total_steps, cycles in (
            (5e-4, 0, 40, 1), (2e-3, 7, 40, 1), (1e-2, 500, 30, 1), (3e-3, 1, 1, 1), (2e-3, 7, 40, 3), (5e-4, 0, 20, 50),
        ):
            values = learning_rates(name, base, warmup_steps, total_steps, total_steps, cycles)
            cases.append(dict(lr_scheduler=name, learning_rate=base, lr_warmup_steps=warmup_steps,
                              max_train_steps=total_steps, lr_num_cycles=cycles, lr=values))
    write_json(path, cases)


def random_microbatch(checkpoint, num_vectors, batch, side, seed):
    """The inputs of one microbatch, with the placeholders in the middle of each prompt."""
    generator = seeded(seed)
    unet = UNet2DConditionModel.load_config(checkpoint, subfolder="unet")
    text = CLIPTextModel.config_class.from_pretrained(checkpoint, subfolder="text_encoder")
    tokenizer = CLIPTokenizer.from_pretrained(checkpoint, subfolder="tokenizer")
    words = " ".join(["x"] * num_vectors)
    prompts = [f"a {kind} of a {words} on black" for kind in ("photo", "rendering", "picture")][:batch]
    ids = tokenizer(prompts, padding="max_length", truncation=True, max_length=77, return_tensors="pt").input_ids
    (x,) = tokenizer("x", add_special_tokens=False).input_ids
    ids[ids == x] = (torch.arange(num_vectors) + text.vocab_size).repeat(batch)
    shape = (batch, unet["in_channels"], *side)
    return {
        "embeds": torch.randn(num_vectors, text.hidden_size, generator=generator) * 0.02,
        "latents": torch.randn(shape, generator=generator),
        "noise": torch.randn(shape, generator=generator),
        "timesteps": torch.randint(0, 1000, (batch,), generator=generator),
        "input_ids": ids,
    }


def make_step_goldens(checkpoint, path):
    golden = GoldenFile()
    golden.metadata["cases"] = []
    golden.metadata["snr_gamma"] = 1
    for num_vectors, batch, side in ((1, 1, (8, 8)), (1, 3, (8, 8)), (3, 2, (7, 5)), (2, 1, (16, 16))):
        references = {p: Reference(checkpoint, num_vectors, p) for p in ("no", "bf16")}
        for seed in (100, 101):
            case = f"vectors-{num_vectors}-batch-{batch}-side-{side[0]}x{side[1]}-seed-{seed}"
            inputs = random_microbatch(checkpoint, num_vectors, batch, side, seed)
            golden.metadata["cases"].append(case)
            golden.put_all(f"{case}/in", inputs)
            for precision, reference in references.items():
                loss, grad = reference.microbatch(**inputs)
                name = "bf16" if precision == "bf16" else "fp32"
                golden.put_all(f"{case}/{name}", {"loss": loss, "grad": grad})
            loss, grad = references["no"].microbatch(**inputs, snr_gamma=golden.metadata["snr_gamma"])
            golden.put_all(f"{case}/fp32-snr", {"loss": loss, "grad": grad})
    golden.save(path)
