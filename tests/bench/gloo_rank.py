#!/usr/bin/env python3
"""One rank of PyTorch's Gloo on loopback, driven as worker/benches/ring is; see ring.py.

usage: gloo_rank.py RANK WORLD_SIZE PORT
"""
import json
import sys
import time

import torch
import torch.distributed as dist


def main():
    rank, world_size, port = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    print(json.dumps({"connected": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        tensor, seconds, processor = torch.empty(order["floats"]), [], []
        # The first time does not count.
        for number in range(order["times"] + 1):
            tensor.fill_(rank + 1)
            dist.barrier()
            began, computed = time.perf_counter(), time.process_time()
            dist.all_reduce(tensor)
            if number > 0:
                seconds.append(time.perf_counter() - began)
                processor.append(time.process_time() - computed)
        del tensor
        print(json.dumps({"seconds": seconds, "processor_seconds": processor}), flush=True)


if __name__ == "__main__":
    main()
