"""Time training steps of GPT-2 124M as nanoGPT takes them on a CPU: transformers' model, bf16 autocast, AdamW, clipping.

usage: gpt2_step.py [--batch 4] [--block 1024] [--steps 4] [--threads N] [--compile] [--fp32]

Prints an object for each step: seconds by the clock, and those that all threads computed.
"""
import argparse
import json
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--block", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, help="default: torch's own")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--fp32", action="store_true", help="no autocast")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    model = GPT2LMHeadModel(config).train()
    run = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    for _ in range(options.steps):
        ids = torch.randint(0, config.vocab_size, (options.batch, options.block))
        started, computed = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not options.fp32):
            loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        taken = {"step_seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - computed}
        print(json.dumps({**{name: round(value, 3) for name, value in taken.items()}, "loss": round(loss.item(), 3)}), flush=True)


if __name__ == "__main__":
    main()
