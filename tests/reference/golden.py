#!/usr/bin/env python3
"""Make the golden tensors that Ringtune's numbers are tested against, with torch, diffusers and transformers.

usage: golden.py OUT_DIR        (a new or empty folder; tests/reference/ensure.sh calls this when it is needed)

In OUT_DIR, with CHECKPOINT one of tiny15 and tiny2 (see make_sd.py); floats are stored as fp32, also those that the
reference computed in bf16:

CHECKPOINT/                        the checkpoint itself, in diffusers' layout
CHECKPOINT-text.safetensors        every block and the whole of the text encoder
CHECKPOINT-vae.safetensors         … of the autoencoder
CHECKPOINT-unet.safetensors        … of the UNet
    metadata "cases": a JSON list of {case, kind, path, numbers}: `kind` is the class in diffusers or transformers
    ("model" for the whole), `path` the module's path, which is also the prefix of its weights in the checkpoint (for
    the text encoder without `text_model.`), `numbers` plain arguments (upsample_size [height, width]).
    Keys: CASE/in/ARGUMENT (names of the forward method's parameters; a tuple's items as NAME.0, NAME.1),
    CASE/fp32/out and CASE/bf16/out (a tuple's items as out.0, out.1.0; a tuple of one as out).
    Whole models: text  whole/in/input_ids -> out;  vae  {even,odd}/encode/in/pixels -> mean, logvar,
    {even,odd}/decode/in/latents -> out (latents unscaled);  unet  {even,odd,wide}/whole/in/{sample,timesteps,
    encoder_hidden_states} -> out.
CHECKPOINT-step.safetensors        loss and gradient of whole microbatches
    metadata "cases": a JSON list of names. Keys: CASE/in/{embeds [n, width], latents, noise, timesteps, input_ids}
    (placeholder ids count up from the vocabulary's size), CASE/{fp32,bf16,fp32-snr}/{loss [1], grad [n, width]}, the
    last with min-SNR weights of the gamma in metadata "snr_gamma".
CHECKPOINT-lora.safetensors        loss and gradients of whole microbatches with adapters, by PEFT
    metadata "cases": {case: {rank, alpha, snr_gamma (0: none)}}. Keys: CASE/in/{latents, noise, timesteps, input_ids},
    CASE/factors/NAME (as unet.….to_q.lora_A.weight), CASE/{fp32,bf16}/{loss [1], grad/NAME}.
CHECKPOINT-whole.safetensors       loss and gradients of whole microbatches with respect to all of the UNet's parameters
    metadata "cases": {case: {snr_gamma (0: none)}}. Keys: CASE/in/… as before, CASE/{fp32,bf16}/{loss [1], grad/NAME}.
CHECKPOINT-pipeline.safetensors    pictures by every sampler with classifier-free guidance, fp32
    metadata "cases": {case: {sampler, prompt, guidance_scale, steps}}. Keys: CASE/{input_ids, negative_input_ids, noise,
    step_noise (of a sampler that takes some, [steps, …]), latents (final, scaled), pixels (decoded, before the clamp
    to [-1, 1])}.
CHECKPOINT-trace/                  six steps of two microbatches in the trace format, fp32 (replay_trace.py's own test)
attention.safetensors              the UNet's attention in full-size widths and lengths, with gradients
    metadata "cases": {case: {channels, heads, context_width}}. Keys: CASE/in/{x, context (cross-attention only),
    out_grad}, CASE/{fp32,bf16}/{out, grad_x, grad_context}. Weights as CASE.to_q.weight … in
attention-weights.safetensors
noise_schedules.safetensors
    metadata "schedules": {name: the scheduler's config}. Keys: latents, noise [6, 4, 5, 3]; NAME/{alphas_cumprod [T],
    timesteps [6]}, NAME/{fp32,bf16}/{add_noise, get_velocity}, NAME/{epsilon,v_prediction}/min_snr_{5,1} [6].
posterior.safetensors              moments [2, 8, 3, 5] -> mean, logvar (clamped); noise -> sample (unscaled)
samplers.safetensors               the samplers alone: whole walks from noise, fp32
    metadata "cases": {case: {sampler, config, steps}}. Keys: CASE/{timesteps [n] (as floats), noise, step_noise (of a
    sampler that takes some, [n, …]), model_inputs [n, …], model_outputs [n, …], latents [n+1, …]}; n can be above
    steps. Metadata "saved": {sampler: what diffusers writes as scheduler_config.json, as text}.
adamw.safetensors                  50 steps of torch.optim.AdamW
    metadata "cases": {case: {betas, weight_decay, eps, lrs [50]}}. Keys: grads [50, 3, 32],
    CASE/weights [51, 3, 32] (before the first step, then after each).
lr_schedules.json                  a list of {lr_scheduler, learning_rate, lr_warmup_steps, max_train_steps,
    lr_num_cycles, lr}; lr[s - 1] is what optimizer step s is taken with
tokens.json                        a list of {checkpoint (tiny15, tiny2 or toy-sd), placeholder_tokens, tokens_added,
    placeholder_ids, prompts: [{text, input_ids [77]}], words: [{word, ids (no special tokens)}]}
GPT2/                              a GPT-2 as transformers saves it, for GPT2 one of gpt2-tiny and gpt2-odd; below gpt2-tiny
    the same in bare/ (no prefix, with masks and head), fp16/, bf16/ and shards/
GPT2.safetensors                   loss, all gradients, and inputs and outputs of all layers
    metadata "cases": a JSON list of {case, batch, block}. Keys: CASE/in/{inputs, targets} [batch, block],
    CASE/{fp32,bf16}/loss [1], CASE/{fp32,bf16}/h.N/{in, out, grad_in, grad_out}, CASE/{fp32,bf16}/grad/NAME.
GPT2-text.safetensors              greedy continuations of prompts, fp32
    metadata "cases": a JSON list of names. Keys: CASE/{prompt, generated (transformers' generate, prompt and all, up to the
    model's positions), cropped (beyond them, as nanoGPT's generate), logits [tokens of cropped behind the prompt, vocabulary]}
sampling.safetensors               what generate's warpers leave of random logits
    metadata "cases": {case: {temperature, top_k, top_p}}. Keys: logits [4, 500], CASE/probabilities [4, 500]
gpt2-steps.safetensors             five optimizer steps of gpt2-tiny over two microbatches each, by nanoGPT's recipe
    metadata "recipe". Keys: {fp32,bf16}/step-S/{norm [1], model.NAME, adamw.mean.NAME, adamw.square.NAME},
    {fp32,bf16}/step-S/PART/{inputs, targets, loss [1]}
GPT2-dropout.safetensors, gpt2-dropout-steps.safetensors
    the same as GPT2.safetensors and gpt2-steps.safetensors with dropout, whose masks goldens/dropout.py restates.
    metadata "dropout": {rate, seed, step, first_sample}; in the steps, step and first_sample are the microbatch's own.
pictures/, pictures.safetensors    picture files; Keys: FILE/decoded [h, w, 3] u8 (orientation applied, RGB),
    FILE/size-S-crop-C-flip-F [3, S, S] in [-1, 1], as the training script makes it (PIL's bicubic)
manifest.json                      written last: sizes of all files; a folder without it is not complete
"""
import sys
import time
import warnings
from pathlib import Path

import diffusers
import torch
import transformers

from goldens import attention, blocks, data, dropout, gpt2, lora, samplers, sampling, text, trace, training, whole_unet, write_json
from make_sd import make_checkpoint

TOY = Path(__file__).resolve().parent.parent / "fixtures/toy-sd"


def make_goldens(out):
    checkpoints = {name: out / name for name in ("tiny15", "tiny2")}
    for name, folder in checkpoints.items():
        make_checkpoint(folder, name)
        blocks.make_text_goldens(folder, out / f"{name}-text.safetensors")
        blocks.make_vae_goldens(folder, out / f"{name}-vae.safetensors")
        blocks.make_unet_goldens(folder, out / f"{name}-unet.safetensors")
        training.make_step_goldens(folder, out / f"{name}-step.safetensors")
        lora.make_lora_goldens(folder, out / f"{name}-lora.safetensors")
        whole_unet.make_whole_goldens(folder, out / f"{name}-whole.safetensors")
        sampling.make_pipeline_goldens(folder, out / f"{name}-pipeline.safetensors")
        trace.write_reference_trace(folder, out / f"{name}-trace")
    attention.make_attention_goldens(out / "attention.safetensors", out / "attention-weights.safetensors")
    training.make_noise_schedule_goldens(out / "noise_schedules.safetensors")
    training.make_posterior_goldens(out / "posterior.safetensors")
    training.make_adamw_goldens(out / "adamw.safetensors")
    training.make_lr_schedule_goldens(out / "lr_schedules.json")
    samplers.make_sampler_goldens(out / "samplers.safetensors")
    data.make_token_goldens({**checkpoints, "toy-sd": TOY}, out / "tokens.json")
    gpt2.make_gpt2_goldens(out)
    dropout.make_dropout_goldens(out)
    text.make_text_goldens(out)
    data.make_picture_goldens(out / "pictures", out / "pictures.safetensors")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        sys.exit(f"error: {out} is not empty")
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    diffusers.logging.disable_progress_bar()
    diffusers.logging.set_verbosity_error()
    start = time.monotonic()
    make_goldens(out)
    files = {str(f.relative_to(out)): f.stat().st_size for f in sorted(out.rglob("*")) if f.is_file()}
    versions = {m.__name__: m.__version__ for m in (torch, diffusers, transformers)}
    write_json(out / "manifest.json", {"versions": versions, "files": files})
    print(f"goldens: {len(files)} files, {sum(files.values()) / 1e6:.0f} MB, {time.monotonic() - start:.0f} s",
          file=sys.stderr)


if __name__ == "__main__":
    main()
