"""The areas of golden.py, a module each."""
import json
from pathlib import Path

import torch
from safetensors.torch import save_file


class GoldenFile:
    """Tensors by key, written as one safetensors file. Every float is stored as fp32 (bf16 values exactly)."""

    def __init__(self):
        self.tensors, self.metadata = {}, {}

    def put(self, key, tensor):
        assert key not in self.tensors, key
        tensor = torch.as_tensor(tensor).detach()
        if tensor.is_floating_point():
            tensor = tensor.float()
        # safetensors refuses tensors that share memory; a clone never does.
        self.tensors[key] = tensor.clone().contiguous()

    def put_all(self, prefix, tensors):
        for name, tensor in tensors.items():
            self.put(f"{prefix}/{name}", tensor)

    def save(self, path):
        save_file(self.tensors, path, {"format": "pt", **{k: json.dumps(v) for k, v in self.metadata.items()}})


def write_json(path: Path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def seeded(seed):
    return torch.Generator().manual_seed(seed)
