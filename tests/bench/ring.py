#!/usr/bin/env python3
"""Time all-reduces of our ring beside PyTorch's Gloo in turns, ranks in processes of their own on one machine.

usage: ring.sh [--worlds 2,4] [--bytes 3072,25000000,498000000] [--rounds 5] [--without NAME] [--pace BYTES] [--json FILE]

  Gloo         gloo_rank.py, over TCP on loopback
  ours         worker/benches/ring: gRPC over TCP on loopback, as workers of several machines exchange gradients, through as many
               connections as they measure to be worth while
  ours, one    through one connection (ring.connections = 1); it has no bound, and runs with --pace alone
  ours, TLS    the same in a secured cluster
  ours, memory through Unix sockets and shared memory, as workers of one machine do, secured or not
  ours, Unix   through Unix sockets alone (ring.shared_memory = false); it has no bound
  ours, bf16   as ours, in numbers that travel in bf16; what is added up is fp32 all the same
  ours, cut    as ours, in buckets of 25 MB one after the other, as a model's gradients leave; it has no bound
  ours, exact  as ours, with sums whose bits do not depend on the number of ranks; one microbatch a rank, so that it is the same for two

The ranks of all stay connected; each round has every contender add up every size a few times, one after the other. A time is
that of the slowest rank. Bus bandwidth is bytes / time x 2(n-1)/n, which does not depend on the number n of ranks. "CPU ms" is
what a sum took of processors, of all ranks and the system's work for them together, by medians: on a busy machine it says more than
time. "Allocs" is how often memory was asked for, for each segment that was sent. The bounds:
1.5 times Gloo's bandwidth for what is large, Gloo's time for what is small, with TLS Gloo's bandwidth without it. Exit code 1
when one is not met. With --pace the system holds each TCP connection to so many bytes a second, Gloo's too (paced.c), as
networks do that give each connection a share of the link.
"""
import argparse
import atexit
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import turns

HERE = Path(__file__).resolve().parent
# Sizes below this are judged by their time.
SMALL = 65536
# Bytes of one of a model's buckets.
BUCKET = 25_000_000


class Ranks:
    """The processes of one contender."""

    def __init__(self, commands, how=None, most=None):
        # What each order to add up says besides.
        self.how = how or {}
        # Numbers of a buffer at most; what is more is cut.
        self.most = most
        self.processes = [subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                           text=True) for command in commands]

    def ask(self, orders):
        """Gives each process its order, if there are any, and returns what each answers."""
        for process, order in zip(self.processes, orders or []):
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        answers = [process.stdout.readline() for process in self.processes]
        if not all(answers):
            self.end()
            sys.exit(f"error: a rank ended early: {self.processes[answers.index('')].args}")
        return [json.loads(answer) for answer in answers]

    def add_up(self, floats, times):
        """Of each time the seconds of the slowest rank and the processors' seconds of all ranks; allocations and segments of all
        times, where they are counted."""
        if self.most:
            floats = [self.most] * (floats // self.most) + [floats % self.most] * (floats % self.most > 0)
        answers = self.ask([{"floats": floats, "times": times, **self.how}] * len(self.processes))
        each_time = lambda name, together: [together(each) for each in zip(*(answer[name] for answer in answers))]
        counted = [sum(answer.get(name, 0) for answer in answers) for name in ("allocations", "segments")]
        return each_time("seconds", max), each_time("processor_seconds", sum), counted

    def end(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def ours(program, world, options=(), how=None, most=None):
    # One by one: the first makes the certificate authority, where there is to be one.
    ranks, addresses = Ranks([], how, most), []
    for _ in range(world):
        one = Ranks([[program, *options]])
        addresses += one.ask(None)
        ranks.processes += one.processes
    job = str(uuid.uuid4())
    for formed in ranks.ask([{"job": job, "rank": rank, "members": addresses} for rank in range(world)]):
        if formed["reached"]:
            print(formed["reached"], file=sys.stderr)
    return ranks


def gloo(world):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = Ranks([[sys.executable, HERE / "gloo_rank.py", rank, world, port] for rank in range(world)])
    ranks.ask(None)
    return ranks


def pace(bytes_per_second):
    """Holds each TCP connection of what is started from here on to so many bytes a second."""
    library = tempfile.NamedTemporaryFile(suffix=".so", delete=False)
    atexit.register(os.unlink, library.name)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library.name, HERE / "paced.c"], check=True)
    os.environ.update(LD_PRELOAD=library.name, PACED_BYTES=str(bytes_per_second))


def times_of(size):
    """How often a round adds a size up."""
    return 200 if size < SMALL else max(2, min(20, 250_000_000 // size))


def compare(options, world, folder):
    """Prints one world's table and bounds; its times, its processors' times and its bounds."""
    start = {"Gloo": lambda: gloo(world), "ours": lambda: ours(options.program, world),
             "ours, TLS": lambda: ours(options.program, world, ["--pki", folder / "pki"]),
             "ours, memory": lambda: ours(options.program, world, ["--sockets", folder]),
             "ours, Unix": lambda: ours(options.program, world, ["--sockets", folder, "--without-memory"]),
             "ours, bf16": lambda: ours(options.program, world, how={"sums": "fast_bf16"}),
             "ours, cut": lambda: ours(options.program, world, most=BUCKET // 4),
             "ours, exact": lambda: ours(options.program, world, how={"sums": "exact"})}
    if options.pace:
        start["ours, one"] = lambda: ours(options.program, world, ["--connections", "1"])
    contenders = {name: start[name]() for name in start if name == "Gloo" or name not in options.without}
    times = {size: {name: [] for name in contenders} for size in options.bytes}
    processors = {size: {name: [] for name in contenders} for size in options.bytes}
    counts = {size: {name: [0, 0] for name in contenders} for size in options.bytes}
    for number in range(1, options.rounds + 1):
        for size in options.bytes:
            for name, ranks in contenders.items():
                taken, processor, counted = ranks.add_up(size // 4, times_of(size))
                times[size][name] += taken
                processors[size][name] += processor
                counts[size][name] = [before + more for before, more in zip(counts[size][name], counted)]
                print(f"round {number}, {world} ranks, {size} bytes, {name}: {statistics.median(taken) * 1e3:.3f} ms, "
                      f"{statistics.median(processor) * 1e3:.3f} ms of processors", file=sys.stderr, flush=True)
    for ranks in contenders.values():
        ranks.end()
    judged = []
    for size, taken in times.items():
        print(f"{world} ranks, {size} bytes")
        bandwidth = lambda seconds: size * 2 * (world - 1) / world / statistics.median(seconds) / 1e9
        milliseconds = {name: [1e3 * seconds for seconds in each] for name, each in taken.items()}
        allocations = lambda made, segments: f"{made / segments:.1f}" if segments else "-"
        columns = {"GB/s": {name: f"{bandwidth(each):.3f}" for name, each in taken.items()},
                   "CPU ms": {name: f"{statistics.median(each) * 1e3:.3f}" for name, each in processors[size].items()},
                   "allocs": {name: allocations(*each) for name, each in counts[size].items()}}
        turns.print_table(milliseconds, "Gloo", columns, "ms")
        for name, factor in (("ours", 1.5), ("ours, memory", 1.5), ("ours, TLS", 1.0)):
            if name not in taken:
                continue
            ratio = turns.ratios(taken[name], taken["Gloo"])[0]
            if size < SMALL:
                if name != "ours, TLS":
                    judged.append(turns.judged(f"{name} of Gloo's time", ratio, 1.0))
            elif name != "ours, TLS" or size <= 25_000_000:
                judged.append(turns.judged(f"{name} of Gloo's bandwidth", 1 / ratio, factor, at_most=False))
    return times, processors, judged


def main():
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, required=True, help="what worker/benches/ring compiles to")
    parser.add_argument("--worlds", type=numbers, default=[2, 4])
    parser.add_argument("--bytes", type=numbers, default=[3072, 25_000_000, 498_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", action="append", default=[], choices=["ours", "ours, TLS", "ours, memory", "ours, Unix", "ours, bf16", "ours, cut", "ours, exact"], help="to leave out")
    parser.add_argument("--pace", type=int, default=0, help="bytes a second of each TCP connection; 0: as many as there are")
    parser.add_argument("--json", type=Path, default=HERE.parent.parent / "target/bench-ring.json")
    options = parser.parse_args()
    if min(options.worlds) < 2 or min(options.bytes) < 4 or options.rounds < 1 or options.pace < 0:
        parser.error("allowed are worlds of 2 and more, 4 bytes and more, 1 round and more, a pace of 0 and more")
    found, processors, judged = {}, {}, []
    if options.pace:
        pace(options.pace)
    for world in options.worlds:
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o700)
            found[world], processors[world], bounds = compare(options, world, Path(folder))
        judged += [{"ranks": world, **bound} for bound in bounds]
    ok = all(bound["met"] for bound in judged)
    turns.write(options.json, {"seconds": found, "processor_seconds": processors, "bounds": judged, "ok": ok})
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
