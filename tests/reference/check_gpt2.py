"""Print the loss of a saved GPT-2, as transformers loads it; fails where a tensor is missing, left over or misshapen.

usage: check_gpt2.py FOLDER BLOCK INPUTS TARGETS      (ids as JSON lists)
"""
import json
import sys

import torch
from transformers import GPT2LMHeadModel

folder, block, inputs, targets = sys.argv[1:]
model, about = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)
problems = {key: found for key, found in about.items() if found}
if problems:
    sys.exit(f"error: {problems}")
inputs, targets = (torch.tensor(json.loads(ids)).view(-1, int(block)) for ids in (inputs, targets))
with torch.no_grad():
    logits = model(input_ids=inputs).logits
print(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item())
