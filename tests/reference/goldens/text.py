"""Goldens of making text with a GPT-2: greedy continuations, by transformers and by nanoGPT's crop, and what the warpers leave."""
import torch
from transformers import GPT2LMHeadModel
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from . import GoldenFile, seeded
from .gpt2 import MODELS

# Tokens of the prompts.
PROMPTS = (1, 5, 12)
# How far a text is cropped goes beyond the positions.
BEYOND = 9
# (temperature, top_k, top_p), as generate's processors go by them: none of 1.0, 0 and 1.0.
WARPERS = {
    "plain": (1.0, 0, 1.0),
    "cold": (0.8, 0, 1.0),
    "top-k": (0.8, 20, 1.0),
    "top-p": (1.0, 0, 0.9),
    "all": (1.3, 50, 0.7),
    "hot": (5.0, 200, 0.95),
    "one": (0.7, 1, 0.5),
    "tiny-p": (1.0, 0, 1e-6),
}


def nanogpt_greedy(model, ids, count):
    """nanoGPT's model.py, generate, with the most likely token; and the logits of each."""
    logits = []
    with torch.no_grad():
        for _ in range(count):
            seen = ids[:, -model.config.n_positions:]
            logits.append(model(input_ids=seen, use_cache=False).logits[0, -1])
            ids = torch.cat([ids, logits[-1].argmax().reshape(1, 1)], dim=1)
    return ids, torch.stack(logits)


def put_texts(out, name):
    model = GPT2LMHeadModel.from_pretrained(out / name).eval()
    golden, cases = GoldenFile(), []
    positions = MODELS[name]["n_positions"]
    for length in PROMPTS:
        prompt = torch.randint(0, MODELS[name]["vocab_size"], (1, length), generator=seeded(600 + length))
        generated = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=positions - length,
                                   do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0)
        text, logits = nanogpt_greedy(model, prompt, positions - length + BEYOND)
        case = f"prompt-{length}"
        cases.append(case)
        golden.put_all(case, {"prompt": prompt[0], "generated": generated[0], "cropped": text[0], "logits": logits})
    golden.metadata["cases"] = cases
    golden.save(out / f"{name}-text.safetensors")


def put_warped(out):
    golden = GoldenFile()
    logits = torch.randn(4, 500, generator=seeded(610)) * torch.tensor([0.5, 2.0, 4.0, 8.0]).reshape(4, 1)
    golden.put("logits", logits)
    for case, (temperature, top_k, top_p) in WARPERS.items():
        warped = logits
        if temperature != 1.0:
            warped = TemperatureLogitsWarper(temperature)(None, warped)
        if top_k != 0:
            warped = TopKLogitsWarper(top_k)(None, warped)
        if top_p < 1.0:
            warped = TopPLogitsWarper(top_p)(None, warped)
        golden.put(f"{case}/probabilities", warped.softmax(dim=-1))
    golden.metadata["cases"] = {case: {"temperature": t, "top_k": k, "top_p": p} for case, (t, k, p) in WARPERS.items()}
    golden.save(out / "sampling.safetensors")


def make_text_goldens(out):
    for name in MODELS:
        put_texts(out, name)
    put_warped(out)
