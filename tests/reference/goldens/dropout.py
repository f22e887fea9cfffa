"""Goldens of GPT-2 with dropout: transformers' own modules and optimizer, with masks restated here in numpy."""
import contextlib

import numpy
import torch
from transformers import GPT2LMHeadModel

from . import GoldenFile
from .gpt2 import ACCUMULATED, MODELS, RECIPE, STEPS, put_passes, put_steps

PURPOSE = 19
SITES = {"embedding": 0, "attention": 1, "projection": 2, "feed_forward": 3}
# A job's; the seed and the step do not fit into 32 bits.
DROPOUT = {"rate": 0.2, "seed": (5 << 32) + 77, "step": (1 << 34) + 3, "first_sample": 6}


def philox(key, counter):
    """Salmon et al. 2011, ten rounds of Philox4x32; arrays of words."""
    key, counter = [numpy.uint64(word) for word in key], [numpy.asarray(word, numpy.uint64) for word in counter]
    low, shift = numpy.uint64(0xFFFFFFFF), numpy.uint64(32)
    for _ in range(10):
        first, second = numpy.uint64(0xD2511F53) * counter[0], numpy.uint64(0xCD9E8D57) * counter[2]
        counter = [(second >> shift) ^ counter[1] ^ key[0], second & low,
                   (first >> shift) ^ counter[3] ^ key[1], first & low]
        key = [(key[0] + numpy.uint64(0x9E3779B9)) & low, (key[1] + numpy.uint64(0xBB67AE85)) & low]
    return counter


def mask(dropout, samples, site, layer, rows, width):
    """That of a place in a GPT-2."""
    return named_mask(dropout, samples, PURPOSE, 4 * layer + SITES[site], rows, width)


def named_mask(dropout, samples, purpose, place, rows, width):
    """0 or 1 / (1 - rate): [samples, rows, width]. csrc/dropout.h and src/dropout.rs say the same in words."""
    masks = []
    for sample in range(samples):
        high = dropout["step"] >> 32 & 0xFFFFFF | purpose << 24
        counter = [place, dropout["first_sample"] + sample, dropout["step"] & 0xFFFFFFFF, high]
        name = [int(word) for word in philox([dropout["seed"] & 0xFFFFFFFF, dropout["seed"] >> 32], counter)]
        row, block = numpy.meshgrid(numpy.arange(rows), numpy.arange((width + 3) // 4), indexing="ij")
        words = philox(name[:2], [block, row, numpy.full_like(row, name[2]), numpy.full_like(row, name[3])])
        words = numpy.stack(numpy.broadcast_arrays(*words), axis=-1).reshape(rows, -1)[:, :width]
        masks.append(words >= int(dropout["rate"] * 2**32))
    return torch.from_numpy(numpy.stack(masks)).float() / (1.0 - dropout["rate"])


@contextlib.contextmanager
def masks_instead_of_chance(dropout):
    """A forward pass drops by these masks: the embeddings first, then in each layer its probabilities and both results."""
    original, places = torch.nn.functional.dropout, ["embedding"]

    def drop(x, p=0.5, training=True, inplace=False):
        assert training and p == dropout["rate"] and not inplace, (p, training)
        number = len(places)
        site, layer = places[-1], (number - 2) // 3 if number > 1 else 0
        rows = x.numel() // x.shape[0] // x.shape[-1]
        factors = mask(dropout, x.shape[0], site, layer, rows, x.shape[-1]).view(x.shape)
        places.append({"embedding": "attention", "attention": "projection", "projection": "feed_forward",
                       "feed_forward": "attention"}[site])
        return x * factors.to(x.dtype)

    torch.nn.functional.dropout = drop
    try:
        yield
    finally:
        torch.nn.functional.dropout = original
    assert len(places) > 4 and places[-1] == "attention", places


def load(folder):
    rates = {name: DROPOUT["rate"] for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop")}
    # Scores of its own, as torch's fused attention draws by itself.
    return GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager", **rates).train()


def make_dropout_goldens(out):
    for name in MODELS:
        golden = GoldenFile()
        put_passes(golden, load(out / name), name, 610, lambda: masks_instead_of_chance(DROPOUT))
        golden.metadata["dropout"] = DROPOUT
        golden.save(out / f"{name}-dropout.safetensors")
    golden = GoldenFile()
    golden.metadata.update(recipe=RECIPE, dropout=DROPOUT)
    microbatches = [{**DROPOUT, "step": step, "first_sample": 2 * part}
                    for step in range(1, STEPS + 1) for part in range(ACCUMULATED)]
    for precision in ("fp32", "bf16"):
        remaining = iter(microbatches)
        put_steps(golden, load(out / "gpt2-tiny"), "gpt2-tiny", precision,
                  lambda: masks_instead_of_chance(next(remaining)))
    golden.save(out / "gpt2-dropout-steps.safetensors")
