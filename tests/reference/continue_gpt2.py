"""What transformers makes of prompts with a GPT-2 and its tokenizer, the most likely token each time.

usage: continue_gpt2.py FOLDER (PROMPT TOKENS)...      (prints an object a prompt: text and tokens behind it)
"""
import json
import sys

import torch
from transformers import GPT2LMHeadModel, GPT2Tokenizer

folder, *asked = sys.argv[1:]
tokenizer = GPT2Tokenizer(f"{folder}/vocab.json", f"{folder}/merges.txt")
model = GPT2LMHeadModel.from_pretrained(folder).eval()
for prompt, count in zip(asked[::2], asked[1::2]):
    ids = torch.tensor([tokenizer.encode(prompt) or [tokenizer.eos_token_id]])
    text = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=int(count), do_sample=False,
                          eos_token_id=None, pad_token_id=0)
    tokens = text[0, ids.shape[1]:].tolist()
    print(json.dumps({"tokens": tokens, "text": tokenizer.decode(tokens, clean_up_tokenization_spaces=False)}))
