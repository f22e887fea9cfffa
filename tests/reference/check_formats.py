#!/usr/bin/env python3
"""Load a job's two embedding files the way diffusers, kohya's scripts, AUTOMATIC1111 and ComfyUI do, and compare.

usage: check_formats.py OUT CHECKPOINT

OUT is a job's folder with learned_embeds.safetensors and learned_embeds-emb_params.safetensors. diffusers is asked
itself. The other tools are not in a package registry; what their loaders go by is written down here as rules:

  AUTOMATIC1111  exactly one tensor, whatever its key; one dimension means one vector; the width has to be the text
                 encoder's; the word in prompts is the file's name without its ending.
  ComfyUI        `embedding:NAME`, with or without the ending; the first tensor, a row a token.
  kohya          the first tensor, [vectors, width]; the words NAME, NAME1, NAME2 … are added to the tokenizer, none
                 of which it may know, and NAME in a prompt becomes all of them. To train on: the first tensor.

With each of them, the same prompt has to give the same states of the text encoder, bit for bit.

Prints a JSON line; exit code 0 when all agree, 1 when not. Run it with the python that setup.sh prints.
"""
import quiet  # noqa: F401

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from diffusers import StableDiffusionPipeline
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import CLIPTextModel, CLIPTokenizer

PROMPT = "a photo of a {}"
# A name that a user would give the file; no checkpoint knows it as a word.
NAME = "my-learned-word"
FACTS = ["data_hash", "initializer_token", "job_hash", "model_hash", "placeholder_token", "seed", "step", "version"]


def read_metadata(path):
    with safe_open(path, "pt") as file:
        return file.metadata()


def a1111_rows(path, width):
    tensors = load_file(path)
    assert len(tensors) == 1, f"{path}: {sorted(tensors)}"
    (rows,) = tensors.values()
    rows = rows.unsqueeze(0) if rows.dim() == 1 else rows
    assert rows.shape[-1] == width, f"{path}: {rows.shape} for a text encoder of width {width}"
    return path.stem, rows.to(torch.float32)


def comfy_rows(folder, name):
    endings = ["", ".safetensors", ".pt", ".bin"]
    path = next(path for path in (Path(folder) / (name + ending) for ending in endings) if path.is_file())
    return next(iter(load_file(path).values()))


def kohya_rows(path, tokenizer):
    rows = next(iter(load_file(path).values()))
    words = [path.stem] + [f"{path.stem}{number}" for number in range(1, rows.size(0))]
    assert tokenizer.add_tokens(words) == len(words), f"one of {words} is in the vocabulary"
    ids = tokenizer.convert_tokens_to_ids(words)
    assert ids == list(range(ids[0], ids[0] + len(words))) and ids[-1] == len(tokenizer) - 1, ids
    return ids, rows


def states_with(checkpoint, ids, rows, tokenizer):
    """The text encoder's states for the prompt with these ids for the word."""
    encoder = CLIPTextModel.from_pretrained(checkpoint, subfolder="text_encoder", dtype=torch.float32)
    encoder.resize_token_embeddings(max(ids) + 1)
    with torch.no_grad():
        encoder.get_input_embeddings().weight[torch.tensor(ids)] = rows
        before = tokenizer(PROMPT.replace("{}", "").strip(), add_special_tokens=False).input_ids
        tokens = [tokenizer.bos_token_id, *before, *ids, tokenizer.eos_token_id]
        tokens += [tokenizer.pad_token_id] * (tokenizer.model_max_length - len(tokens))
        return encoder(torch.tensor([tokens]))[0]


def states_in_diffusers(checkpoint, path, word, **options):
    pipeline = StableDiffusionPipeline.from_pretrained(checkpoint, safety_checker=None, dtype=torch.float32)
    pipeline.load_textual_inversion(str(path), **options)
    with torch.no_grad():
        return pipeline.encode_prompt(PROMPT.replace("{}", word), "cpu", 1, False)[0]


def main():
    out, checkpoint = Path(sys.argv[1]), sys.argv[2]
    learned, emb_params = out / "learned_embeds.safetensors", out / "learned_embeds-emb_params.safetensors"
    # 1. The files themselves: one key each, the same rows, the same facts.
    ((token, rows),) = load_file(learned).items()
    ((key, same_rows),) = load_file(emb_params).items()
    assert key == "emb_params" and rows.dtype == torch.float32 and rows.dim() == 2, (key, rows.dtype, rows.shape)
    assert torch.equal(rows, same_rows) and rows.isfinite().all(), "the two files hold different rows"
    facts = read_metadata(learned)
    assert facts == read_metadata(emb_params), "the two files say different things of themselves"
    assert facts["ringtune.placeholder_token"] == token and facts["format"] == "pt", facts
    assert all(facts[f"ringtune.{fact}"] for fact in FACTS), facts

    # 2. Each loader with each file: the same states of the text encoder.
    expected = states_in_diffusers(checkpoint, learned, token)
    agree = {"diffusers": torch.equal(expected, states_in_diffusers(checkpoint, emb_params, "<w>", token="<w>"))}
    agree["diffusers, the folder"] = torch.equal(expected, states_in_diffusers(checkpoint, out, token))
    for source in [learned, emb_params]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{NAME}.safetensors"
            shutil.copy(source, path)
            tokenizer = CLIPTokenizer.from_pretrained(checkpoint, subfolder="tokenizer")
            name, a1111 = a1111_rows(path, rows.shape[1])
            agree[f"AUTOMATIC1111, {source.name}"] = name == NAME and torch.equal(a1111, rows)
            comfy = [comfy_rows(folder, NAME), comfy_rows(folder, path.name)]
            agree[f"ComfyUI, {source.name}"] = all(torch.equal(found, rows) for found in comfy)
            ids, found = kohya_rows(path, tokenizer)
            agree[f"kohya, {source.name}"] = torch.equal(
                expected, states_with(checkpoint, ids, found, tokenizer))
    # The comparison can fail: other rows give other states.
    ids = list(range(len(tokenizer) - len(rows), len(tokenizer)))
    agree["other rows differ"] = not torch.equal(expected, states_with(checkpoint, ids, rows + 0.01, tokenizer))
    ok = all(agree.values())
    print(json.dumps({"ok": ok, "token": token, "shape": list(rows.shape), "agree": agree}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
