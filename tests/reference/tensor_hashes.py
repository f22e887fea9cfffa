#!/usr/bin/env python3
"""Prints the SHA-256 of every tensor in safetensors files, and nothing of their metadata.

    tensor_hashes.py FILE...        one line a tensor: hash, dtype, shape, key, file name

Two releases give the same embedding when these lines are the same: the metadata names the version. Needs no package.
"""

import hashlib
import json
import struct
import sys
from pathlib import Path


def tensors(path: Path):
    """The key, dtype, shape and bytes of each tensor, in the order of the keys."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    for key, tensor in sorted(header.items()):
        begin, end = (8 + length + offset for offset in tensor["data_offsets"])
        yield key, tensor["dtype"], tensor["shape"], content[begin:end]


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    for name in sys.argv[1:]:
        for key, dtype, shape, data in tensors(Path(name)):
            digest = hashlib.sha256(data).hexdigest()
            print(digest, dtype, "x".join(map(str, shape)), key, Path(name).name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
