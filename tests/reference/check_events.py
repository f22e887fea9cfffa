#!/usr/bin/env python3
"""Read a job's events with TensorBoard's own reader and compare them with its metrics.csv and its previews.

usage: check_events.py OUT [--generated DIR]

OUT is a job's folder. --generated: pictures that `ringtune generate` drew with the job's embedding; those that the job
drew after its last step have to be the same, pixel by pixel.

Prints a JSON line; exit code 0 when all agree, 1 when not. Run it with the python that setup.sh prints.
"""
import argparse
import csv
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import IMAGES, SCALARS, EventAccumulator


def pixels(png):
    return np.asarray(Image.open(png).convert("RGB"))


def check_scalars(events, rows):
    for tag in ("loss", "lr", "step_seconds", "validation_loss"):
        expected = [(int(row["step"]), np.float32(row[tag])) for row in rows if row[tag]]
        found = [(scalar.step, np.float32(scalar.value)) for scalar in events.Scalars(tag)]
        # Seconds are written to the microsecond in metrics.csv.
        tolerance = 1e-6 if tag == "step_seconds" else 0
        assert [step for step, _ in found] == [step for step, _ in expected], f"{tag}: {found}"
        for (step, one), (_, other) in zip(found, expected):
            assert abs(one - other) <= tolerance, f"{tag} of step {step}: {one} and {other}"


def check_pictures(events, folder):
    pictures = {}
    for path in folder.glob("preview-*-*.png"):
        step, number = re.fullmatch(r"preview-(\d+)-(\d+)\.png", path.name).groups()
        pictures[int(step), int(number)] = path
    shown = 0
    for tag in events.Tags()["images"]:
        number = int(tag.removeprefix("validation/"))
        for picture in events.Images(tag):
            path = pictures[picture.step, number]
            expected = pixels(path)
            assert (pixels(io.BytesIO(picture.encoded_image_string)) == expected).all(), path
            assert (picture.height, picture.width) == expected.shape[:2], path
            shown += 1
    assert shown == len(pictures), f"{shown} of {len(pictures)} pictures are shown"
    return pictures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--generated", type=Path)
    options = parser.parse_args()

    # 0: keep all.
    events = EventAccumulator(str(options.out), size_guidance={SCALARS: 0, IMAGES: 0})
    events.Reload()
    rows = list(csv.DictReader((options.out / "metrics.csv").open()))
    check_scalars(events, rows)
    pictures = check_pictures(events, options.out)
    compared = 0
    if options.generated:
        last = max(step for step, _ in pictures)
        for (step, number), path in pictures.items():
            if step == last:
                other = options.generated / f"prompt-00-{number:03}.png"
                assert (pixels(path) == pixels(other)).all(), f"{path.name} is not {other.name}"
                compared += 1
    print(json.dumps({"ok": True, "steps": len(rows), "pictures": len(pictures), "compared": compared}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
