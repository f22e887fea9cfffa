"""Tokens of a .jsonl file by prepare-text and by tiktoken, in turns, with as many threads each.

usage: tokens.py --program RINGTUNE_WORKER --tokenizer FOLDER TEXTS.jsonl [--threads 2] [--rounds 5]

Of tiktoken only encode_ordinary_batch is timed, on texts that are in memory. Of prepare-text everything is: the process, the
reading, the order, and both files on the disk.
"""
import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import turns

sys.path.insert(0, str(Path(__file__).parents[1] / "reference"))
import nanogpt_tokens


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("texts")
    parser.add_argument("--program", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    encoding = nanogpt_tokens.encoding(arguments.tokenizer)
    with open(arguments.texts, encoding="utf-8", newline="\n") as file:
        texts = [json.loads(line)["text"] for line in file]
    size = sum(len(text.encode()) for text in texts) / 1e6
    folder = Path(tempfile.mkdtemp())
    command = [arguments.program, "prepare-text", arguments.texts, "--tokenizer", arguments.tokenizer, "-o", folder]
    command += ["--threads", str(arguments.threads), "--output", "json"]
    taken = {"tiktoken": [], "prepare-text": []}
    try:
        for _ in range(arguments.rounds):
            began = time.perf_counter()
            encoded = encoding.encode_ordinary_batch(texts, num_threads=arguments.threads)
            taken["tiktoken"].append(time.perf_counter() - began)
            count = sum(map(len, encoded)) + len(texts)
            del encoded
            began = time.perf_counter()
            said = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True).stdout
            taken["prepare-text"].append(time.perf_counter() - began)
            made = json.loads(said)
            assert made["train"]["tokens"] + made["val"]["tokens"] == count, (made, count)
    finally:
        shutil.rmtree(folder)
    for name, seconds in taken.items():
        middle = sorted(seconds)[len(seconds) // 2]
        print(f"{name}: {middle:.2f} s, {size / middle:.1f} MB/s, {count / middle / 1e6:.2f} million tokens/s "
              f"(of {' '.join(f'{one:.2f}' for one in seconds)})")
    medians, minima = turns.ratios(taken["tiktoken"], taken["prepare-text"])
    print(f"prepare-text is {medians:.2f} times as fast by medians, {minima:.2f} by minima: {size:.0f} MB, {count} tokens")


if __name__ == "__main__":
    main()
