#!/usr/bin/env python3
"""Time what a user waits for: from a job's submission to the end of its first step, and the same for a second job.

usage: first.sh [--resolution 512] [--pictures 6] [--rounds 3] [--max-first 15] [--max-second 0.3] [--json FILE]

Each round starts `ringtune up` with one worker and new state, submits a job with pictures that nobody has encoded, and then
another one of the same base model and pictures. Of the first the time to the end of step 1 counts (the model is hashed and
loaded, the step's picture is encoded, weights are packed), of the second the time until its first step begins. The bounds are for the medians. Prints
every round, and one JSON object to --json (default target/bench-first.json). Exit code 1 when a bound is not met.
"""
import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from PIL import Image

import turns

HERE = Path(__file__).resolve().parent
JOB = """kind = "textual_inversion"
name = "first-{which}"
[model]
base = {checkpoint}
[data]
images = {images}
[train]
placeholder_token = "<first>"
initializer_token = "cat"
resolution = {resolution}
train_batch_size = 1
max_train_steps = 2
mixed_precision = "bf16"
seed = {seed}
[cluster]
world_size = 1
"""


def paint(folder, count, side, seed):
    """Pictures of noise in blocks, which nobody has encoded before."""
    draw = random.Random(seed)
    folder.mkdir()
    for number in range(count):
        small = Image.frombytes("RGB", (16, 16), draw.randbytes(3 * 16 * 16))
        small.resize((side, side), Image.Resampling.NEAREST).save(folder / f"{number}.png")


def submit(ringtune, coordinator, job):
    """Submits a job, waits for its end; the seconds until its first step began, and until it was done."""
    began = time.time()
    command = [ringtune, "submit", "--watch", "--output", "json", "--coordinator", coordinator, job]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit(f"error: exit code {result.returncode} from {' '.join(map(str, command))}:\n{result.stdout}")
    rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    step = next(row for row in rows if row.get("event") == "step" and row["step"] == 1)
    ended = datetime.fromisoformat(step["time"].replace("Z", "+00:00")).timestamp() - began
    return ended - step["step_seconds"], ended


def one_round(options, folder, number):
    """The first job's seconds to the end of step 1, and the second one's until it began."""
    images, jobs = folder / "pictures", []
    paint(images, options.pictures, options.resolution, number)
    for which in (1, 2):
        job = folder / f"job-{which}.toml"
        quoted = {"checkpoint": json.dumps(str(options.checkpoint)), "images": json.dumps(str(images))}
        job.write_text(JOB.format(**quoted, resolution=options.resolution, seed=number, which=which), encoding="utf-8")
        jobs.append(job)
    environment = {**os.environ, "XDG_STATE_HOME": str(folder)}
    up = subprocess.Popen([options.ringtune, "up", "--output", "json"], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        coordinator = json.loads(up.stdout.readline())["coordinator"]
        _, first_done = submit(options.ringtune, coordinator, jobs[0])
        time.sleep(2)  # the worker says a moment after the job's end that it is free
        second_began, _ = submit(options.ringtune, coordinator, jobs[1])
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(timeout=60)
    return first_done, second_began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--ringtune", type=Path, required=True, help="the program ringtune")
    parser.add_argument("--resolution", type=int, default=512)
    parser.add_argument("--pictures", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-first", type=float, default=15.0, help="seconds to the end of a first job's step 1")
    parser.add_argument("--max-second", type=float, default=0.3, help="seconds until a second job's step 1 begins")
    parser.add_argument("--json", type=Path, default=HERE.parent.parent / "target/bench-first.json")
    options = parser.parse_args()
    firsts, seconds = [], []
    for number in range(1, options.rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            first, second = one_round(options, Path(folder), number)
        print(f"round {number}: first job's step 1 done after {first:.2f} s, second job's begun after {second:.2f} s",
              file=sys.stderr, flush=True)
        firsts.append(first)
        seconds.append(second)
    judged = [
        turns.judged("first job, to the end of step 1, s", statistics.median(firsts), options.max_first),
        turns.judged("second job, to its first step, s", statistics.median(seconds), options.max_second),
    ]
    ok = all(bound["met"] for bound in judged)
    turns.write(options.json, {"first_seconds": firsts, "second_seconds": seconds, "bounds": judged, "ok": ok})
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
