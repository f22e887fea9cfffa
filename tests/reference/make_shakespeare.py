"""Makes examples/shakespeare of karpathy/char-rnn's data/tinyshakespeare/input.txt.

usage: make_shakespeare.py INPUT.TXT FOLDER

Writes FOLDER/text, the text in parts of about the same length that end where a speech ends, and the tokenizer of
FOLDER/model, trained on all of them. `cat FOLDER/text/*.txt` gives INPUT.TXT again.
"""

import hashlib
import sys
from pathlib import Path

import make_tokenizer

PARTS = 40
# 256 bytes, the merges and <|endoftext|>: 1,024 tokens.
MERGES = 767
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def parts(text: str) -> list[str]:
    ends = [0]
    for part in range(1, PARTS):
        ends.append(text.index("\n\n", part * len(text) // PARTS) + 2)
    ends.append(len(text))
    return [text[start:end] for start, end in zip(ends, ends[1:])]


def main() -> None:
    source, folder = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
    if (given := hashlib.sha256(source).hexdigest()) != SHA256:
        sys.exit(f"error: {sys.argv[1]} has the SHA-256 {given}; {SHA256} is the text that the example was made of")
    texts = parts(source.decode("ascii"))
    (folder / "text").mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts, 1):
        (folder / "text" / f"{number:02}.txt").write_bytes(text.encode("ascii"))
    make_tokenizer.make(folder / "model", texts, MERGES)


if __name__ == "__main__":
    main()
