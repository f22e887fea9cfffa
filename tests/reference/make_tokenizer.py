"""Makes tests/fixtures/bpe-tokenizer: a byte-level BPE of GPT-2's kind, of 300 merges.

usage: make_tokenizer.py FOLDER

Its text is made up, so that nobody's text is committed with it.
"""

import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

MERGES = 300
PARTS = "th er an in on re at en es or te nd ti st ha le ve ou me se ne al co de ro li ra ce ma ".split()
OTHERS = "é ü ñ ж д а и 日 本 語 한 국 😀 🚀 don't we'll I'm they've it's 1 23 456 2024".split()


def sentences(count: int) -> list[str]:
    chance = random.Random(7)
    words = ["".join(chance.choices(PARTS, k=chance.randint(1, 4))) for _ in range(400)]

    def word() -> str:
        return chance.choice(OTHERS) if chance.random() < 0.1 else chance.choice(words[: chance.randint(1, 400)])

    ends = [". ", ", ", "!\n", "  ", "\n\n", ' "', "; "]
    return ["".join(f"{word()} " for _ in range(chance.randint(3, 20))) + chance.choice(ends) for _ in range(count)]


def make(folder: Path, texts: list[str], merges: int) -> None:
    """Trains on the texts, and writes vocab.json and merges.txt: the bytes, the merges, then <|endoftext|>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=256 + merges, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    assert len(model["merges"]) == merges, len(model["merges"])
    vocabulary = model["vocab"] | {"<|endoftext|>": len(model["vocab"])}
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = dict(sorted(vocabulary.items(), key=lambda item: item[1]))
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]), sentences(4000), MERGES)
