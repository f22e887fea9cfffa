"""Writes the small embedding files of tests/fixtures/embeddings, each form with the library that people write it with.

    $(tests/reference/setup.sh) tests/reference/make_embeddings.py tests/fixtures/embeddings

Two rows of 8 numbers, (0..15) / 4 - 1, which float16 and bfloat16 hold exactly. `pickle-*` are no embeddings:
reading them with Python's own pickle would write a file.
"""

import os
import pickle
import sys

import torch
from safetensors.torch import save_file


class Calls:
    """What a pickle that runs a command is made of."""

    def __reduce__(self):
        return os.system, ("touch /tmp/ringtune-was-here",)


def main():
    os.chdir(sys.argv[1])
    rows = torch.arange(16, dtype=torch.float32).reshape(2, 8) / 4 - 1
    # AUTOMATIC1111's trainer: modules/textual_inversion/textual_inversion.py, Embedding.save.
    a1111 = {"string_to_token": {"*": 265}, "string_to_param": {"*": torch.nn.Parameter(rows)}, "name": "my-cat",
             "step": 10, "sd_checkpoint": None, "sd_checkpoint_name": None}
    torch.save(a1111, "a1111.pt")
    # As wide as tests/fixtures/toy-sd's text encoder.
    wide = torch.arange(128, dtype=torch.float32).reshape(2, 64) / 256 - 0.25
    torch.save({**a1111, "string_to_param": {"*": torch.nn.Parameter(wide)}}, "toy-a1111.pt")
    torch.save(a1111, "legacy.pt", _use_new_zipfile_serialization=False)
    # The script of the paper: ldm/modules/embedding_manager.py, EmbeddingManager.save.
    ldm = {"string_to_token": {"*": torch.tensor(265)},
           "string_to_param": torch.nn.ParameterDict({"*": torch.nn.Parameter(rows.half())})}
    torch.save(ldm, "ldm-fp16.pt")
    # diffusers' script before it wrote safetensors: one row has one dimension.
    torch.save({"<cat>": rows[0].clone()}, "learned_embeds.bin")
    torch.save({"<cat>": rows.bfloat16()}, "learned_embeds-bf16.bin")
    # Not as rows lie in memory one after the other; and two at once.
    torch.save({"<cat>": rows.t().contiguous().t()}, "strided.bin")
    torch.save({"<cat>": rows, "<dog>": rows.clone()}, "two.bin")
    torch.save({"<cat>": rows / torch.zeros(8)}, "infinite.bin")
    torch.save({"<cat>": rows.double()}, "double.bin")
    torch.save({"<cat>": Calls()}, "pickle-calls.bin")
    with open("pickle-calls.pkl", "wb") as file:
        pickle.dump({"<cat>": Calls()}, file, protocol=4)
    save_file({"<cat>": rows}, "learned_embeds.safetensors")
    save_file({"emb_params": rows.half()}, "emb_params-fp16.safetensors", {"name": "my-cat"})
    save_file({"emb_params": rows.bfloat16()}, "emb_params-bf16.safetensors")


if __name__ == "__main__":
    main()
