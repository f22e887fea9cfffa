"""Goldens of GPT-2: forward and backward of small models, layer by layer, and optimizer steps by nanoGPT's recipe."""
import contextlib

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

from . import GoldenFile, seeded

# Sizes of the models, and the batches that each is run on: (texts, tokens).
MODELS = {
    "gpt2-tiny": dict(n_layer=2, n_embd=48, n_head=3, vocab_size=211, n_positions=24),
    "gpt2-odd": dict(n_layer=3, n_embd=35, n_head=5, vocab_size=103, n_positions=19, n_inner=77, layer_norm_epsilon=1e-4),
}
BATCHES = ((1, 1), (3, 7), (2, 19))
# nanoGPT's train.py; the learning rate is higher, so that five steps can be told apart.
STEPS, ACCUMULATED, CLIP, DECAY, BETAS, EPSILON = 5, 2, 1.0, 0.1, (0.9, 0.95), 1e-8
LEARNING_RATES = (1e-3, 2e-3, 3e-3, 2e-3, 1e-3)
RECIPE = {"learning_rates": LEARNING_RATES, "accumulated": ACCUMULATED, "max_grad_norm": CLIP, "weight_decay": DECAY,
          "betas": BETAS, "epsilon": EPSILON}


def make_model(folder, name):
    """Random weights, also of biases and norms, so that each of them counts; saved as transformers does."""
    config = GPT2Config(**MODELS[name], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    model = GPT2LMHeadModel(config)
    generator = seeded(400 + len(name))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            scale = 0.3 if parameter.dim() == 1 else 0.15
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            if ".ln_" in key and key.endswith("weight"):
                parameter.add_(1.0)
    model.save_pretrained(folder)
    return model.train()


def tokens(name, batch, block, seed):
    ids = torch.randint(0, MODELS[name]["vocab_size"], (batch, block + 1), generator=seeded(seed))
    # Tokens that come often: their rows of the table's gradient are sums.
    ids[:, ::3] = ids[0, 0]
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def run(model, inputs, targets, precision):
    """The mean loss in fp32 of the logits, as nanoGPT and transformers take it."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
        logits = model(input_ids=inputs).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def put_pass(golden, prefix, model, inputs, targets, precision):
    layers = {}

    def watch(number):
        def keep(_, arguments, output):
            output = output[0] if isinstance(output, tuple) else output
            layers[number] = (arguments[0], output)
            for tensor in layers[number]:
                tensor.retain_grad()
        return keep

    hooks = [block.register_forward_hook(watch(n)) for n, block in enumerate(model.transformer.h)]
    model.zero_grad(set_to_none=True)
    loss = run(model, inputs, targets, precision)
    loss.backward()
    for hook in hooks:
        hook.remove()
    golden.put(f"{prefix}/loss", loss.reshape(1))
    for number, (x, y) in layers.items():
        golden.put_all(f"{prefix}/h.{number}", {"in": x, "out": y, "grad_in": x.grad, "grad_out": y.grad})
    golden.put_all(f"{prefix}/grad", {key: parameter.grad for key, parameter in model.named_parameters()})


def put_passes(golden, model, name, seed, around=contextlib.nullcontext):
    """A pass over each batch in each precision, each within `around()`."""
    cases = []
    for batch, block in BATCHES:
        case = f"batch-{batch}-block-{block}"
        cases.append({"case": case, "batch": batch, "block": block})
        inputs, targets = tokens(name, batch, block, seed + block)
        golden.put_all(f"{case}/in", {"inputs": inputs, "targets": targets})
        for precision in ("fp32", "bf16"):
            with around():
                put_pass(golden, f"{case}/{precision}", model, inputs, targets, precision)
    golden.metadata["cases"] = cases


def put_steps(golden, model, name, precision, around=contextlib.nullcontext):
    """Five steps over two microbatches each, each run within `around()`; the state after every step."""
    decayed = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=BETAS, eps=EPSILON, foreach=False, fused=False)
    for step, learning_rate in enumerate(LEARNING_RATES, start=1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        for part in range(ACCUMULATED):
            inputs, targets = tokens(name, 2, 11, 500 + step * ACCUMULATED + part)
            golden.put_all(f"{precision}/step-{step}/{part}", {"inputs": inputs, "targets": targets})
            with around():
                loss = run(model, inputs, targets, precision) / ACCUMULATED
            loss.backward()
            golden.put(f"{precision}/step-{step}/{part}/loss", loss.reshape(1) * ACCUMULATED)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        golden.put(f"{precision}/step-{step}/norm", norm.reshape(1))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for key, parameter in model.named_parameters():
            state = optimizer.state[parameter]
            golden.put(f"{precision}/step-{step}/model.{key}", parameter)
            golden.put(f"{precision}/step-{step}/adamw.mean.{key}", state["exp_avg"])
            golden.put(f"{precision}/step-{step}/adamw.square.{key}", state["exp_avg_sq"])


def make_variants(folder, model):
    """The same model as other programs leave it: without the prefix, with masks and the head, in halves; in two files."""
    tensors = {key: tensor.detach().clone() for key, tensor in model.state_dict().items() if key != "lm_head.weight"}
    config = (folder / "config.json").read_text(encoding="utf-8")

    def write(name, tensors):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(config, encoding="utf-8")
        save_file(tensors, folder / name / "model.safetensors", {"format": "pt"})

    bare = {key.removeprefix("transformer."): tensor for key, tensor in tensors.items()}
    positions = model.config.n_positions
    for number in range(model.config.n_layer):
        bare[f"h.{number}.attn.bias"] = torch.ones(1, 1, positions, positions).tril()
        bare[f"h.{number}.attn.masked_bias"] = torch.tensor(-1e4)
    bare["lm_head.weight"] = bare["wte.weight"].clone()
    write("bare", bare)
    for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        write(name, {key: tensor.to(dtype) for key, tensor in tensors.items()})
    model.save_pretrained(folder / "shards", max_shard_size="40KB")


def make_gpt2_goldens(out):
    for name in MODELS:
        golden = GoldenFile()
        put_passes(golden, make_model(out / name, name), name, 410)
        golden.save(out / f"{name}.safetensors")
    make_variants(out / "gpt2-tiny", GPT2LMHeadModel.from_pretrained(out / "gpt2-tiny"))
    golden = GoldenFile()
    golden.metadata["recipe"] = RECIPE
    for precision in ("fp32", "bf16"):
        model = GPT2LMHeadModel.from_pretrained(out / "gpt2-tiny", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        put_steps(golden, model.train(), "gpt2-tiny", precision)
    golden.save(out / "gpt2-steps.safetensors")
