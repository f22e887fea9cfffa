"""train.bin and val.bin as nanoGPT's data/openwebtext/prepare.py makes them, with tiktoken and NumPy.

usage: nanogpt_tokens.py make COUNT SEED FILE.jsonl
       nanogpt_tokens.py tokens TOKENIZER FILE.jsonl FOLDER [--column text] [--val-fraction 0.0005] [--seed 2357]

The first makes documents of all that is hard about text. The second writes the files: TOKENIZER is a folder with
vocab.json and merges.txt, or gpt2 for tiktoken's own (which needs the network, or its cache). --datasets splits with
Hugging Face's `datasets` instead of the few lines that say what it does; it has to be installed.
"""

import argparse
import json
import math
import random
from pathlib import Path

import numpy as np
import tiktoken

# tiktoken_ext/openai_public.py, r50k_pat_str.
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
END_OF_TEXT = "<|endoftext|>"

WORDS = """the of and a to in is you that it he was for on are as with his they I at be this have from
don't we'll I'm they've it's you'd she's 'tis O'Neil DON'T 'S rock'n'roll naïve café Straße ÆØÅ ß İstanbul
привет мир Ελλάδα 日本語 中文字符 한국어 العربية עברית हिन्दी ไทย ½ Ⅷ ² ٣٤ 12 3.14 1,234,567 2024-01-01 0x1F
😀 👩‍👩‍👧 🇩🇪 ❤️ ✓ … — “quoted” foo_bar a/b/c http://x.y/?z=1&w=%20 C:\\dir #tag @name x=y+z**2 ==> {}[]()<> $1 !!! ???
<|endoftext|> <|endoftext <|im_start|> aaaaaaaaaaaaaaaaaaaaaaaa thethethethethethethethethethethethethethethethethe""".split()
BLANKS = [" "] * 30 + ["  ", "   ", "\n", "\n\n", "\n \n", "\t", " \t ", "\r\n", "\u00a0", "\u3000", "\u2028", "\u200b", "\x0b", "\x0c", "\x85", "        ", ""]
ODD = ["\x00", "\x01", "\x1b[0m", "\x7f", "\ufeff", "\ufffd", "e\u0301", "\u0600", "\U0001d54f", "\U000e0001", "\U0010ffff", "\u202e", "'", "''", "' s"]


def document(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.01:
        return ""
    if kind < 0.02:
        return chance.choice([" ", "\n", "   \n\n", END_OF_TEXT, "'s", " '", "a", "😀", "\x00"])
    if kind < 0.03:
        return "".join(chr(code) for code in (chance.randrange(0x110000) for _ in range(200)) if not 0xD800 <= code < 0xE000)
    if kind < 0.035:
        return chance.choice(["ab", "é", "日本", "x1", "- ", "the"]) * chance.randint(100, 3000)
    parts = []
    for _ in range(chance.randint(1, 120)):
        parts.append(chance.choice(ODD) if chance.random() < 0.03 else chance.choice(WORDS))
        parts.append(chance.choice(BLANKS))
    return "".join(parts)


def make(arguments: argparse.Namespace) -> None:
    chance = random.Random(arguments.seed)
    with open(arguments.file, "w", encoding="utf-8") as file:
        for number in range(arguments.count):
            text = document(chance)
            line = json.dumps({"id": number, "text": text}, ensure_ascii=chance.random() < 0.5)
            file.write(line + "\n")


def letters() -> dict[str, int]:
    """The byte of each letter of a vocabulary: encoder.py, bytes_to_unicode."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + n): byte for n, byte in enumerate(others)}


def encoding(tokenizer: str) -> tiktoken.Encoding:
    if tokenizer == "gpt2":
        return tiktoken.get_encoding("gpt2")
    vocabulary = json.loads((Path(tokenizer) / "vocab.json").read_text(encoding="utf-8"))
    end = vocabulary.pop(END_OF_TEXT)
    of_letter = letters()
    ranks = {bytes(of_letter[letter] for letter in token): id for token, id in vocabulary.items()}
    return tiktoken.Encoding("of a folder", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: end})


def split(count: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """datasets, Dataset.train_test_split(test_size=fraction, seed=seed, shuffle=True)."""
    order = np.random.default_rng(seed).permutation(count)
    validation = math.ceil(fraction * count)
    return order[validation:], order[:validation]


def split_by_datasets(count: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    from datasets import Dataset

    parts = Dataset.from_dict({"number": list(range(count))}).train_test_split(test_size=fraction, seed=seed, shuffle=True)
    return tuple(np.array(parts[name]["number"]) for name in ("train", "test"))


def tokens(arguments: argparse.Namespace) -> None:
    enc = encoding(arguments.tokenizer)
    with open(arguments.file, encoding="utf-8", newline="\n") as file:
        texts = [json.loads(line)[arguments.column] for line in file]
    ids = []
    for text in texts:
        document = enc.encode_ordinary(text)
        document.append(enc.eot_token)
        ids.append(np.array(document, dtype=np.uint16))
    chosen = split_by_datasets if arguments.datasets else split
    train, val = chosen(len(texts), arguments.val_fraction, arguments.seed)
    for name, order in ("train", train), ("val", val):
        np.concatenate([ids[number] for number in order]).astype("<u2").tofile(Path(arguments.folder) / f"{name}.bin")


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("make")
    making.add_argument("count", type=int)
    making.add_argument("seed", type=int)
    making.add_argument("file")
    making.set_defaults(run=make)
    encoding_all = commands.add_parser("tokens")
    encoding_all.add_argument("tokenizer")
    encoding_all.add_argument("file")
    encoding_all.add_argument("folder")
    encoding_all.add_argument("--column", default="text")
    encoding_all.add_argument("--val-fraction", type=float, default=0.0005)
    encoding_all.add_argument("--seed", type=int, default=2357)
    encoding_all.add_argument("--datasets", action="store_true")
    encoding_all.set_defaults(run=tokens)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
