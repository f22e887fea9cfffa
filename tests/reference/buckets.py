#!/usr/bin/env python3
"""State kohya's rule of aspect-ratio buckets, and make pixels by it with Pillow.

usage: buckets.py < QUESTIONS > ANSWERS      (JSON both; worker/tests/golden_worker.rs asks)

QUESTIONS: {"options": [{resolution, min_bucket_reso, max_bucket_reso, bucket_reso_steps, bucket_no_upscale}, …],
"sizes": [[width, height], …], "pictures": [{"file", "resized": [w, h], "bucket": [w, h]}, …]}
ANSWERS: {"placements": [for each options: [for each size: {"resized", "bucket"}]], "pixels": [for each picture: SHA-256 of
its pixels, RGB, row by row, resized by Pillow and cut to the middle]}

The rule is that of sd-scripts: library/model_util.py make_bucket_resolutions, library/train_util.py BucketManager.
"""
import hashlib
import json
import math
import sys

import numpy
from PIL import Image


def bucket_sizes(options):
    """Every width from the smallest on, with the largest height that keeps to the area, and the same turned."""
    area = options["resolution"] ** 2
    step, shortest, longest = options["bucket_reso_steps"], options["min_bucket_reso"], options["max_bucket_reso"]
    side = int(math.sqrt(area) // step) * step
    sizes = {(side, side)}
    for width in range(shortest, longest + 1, step):
        height = min(longest, int((area // width) // step) * step)
        if height >= shortest:
            sizes |= {(width, height), (height, width)}
    return sorted(sizes)


def place_in_nearest(width, height, sizes):
    """The bucket whose aspect ratio differs least; the picture is scaled until it covers it."""
    if (width, height) in sizes:
        bucket = (width, height)
    else:
        ratios = numpy.array([w / h for w, h in sizes])
        bucket = sizes[numpy.abs(ratios - width / height).argmin()]
    if width / height > bucket[0] / bucket[1]:
        scale = bucket[1] / height
    else:
        scale = bucket[0] / width
    return (int(width * scale + 0.5), int(height * scale + 0.5)), bucket


def place_without_upscaling(width, height, options):
    """Shrunk to the area if it is larger, then cut to whole steps."""
    step = options["bucket_reso_steps"]
    area = options["resolution"] ** 2
    ratio = width / height

    def in_steps(value):
        value = int(value + 0.5)
        return value - value % step

    def error(width, height):
        # sd-scripts divides by zero here; a side of nothing is as wrong as can be.
        return abs(width / height - ratio) if height else math.inf

    resized = (width, height)
    if width * height > area:
        exact_width = math.sqrt(area * ratio)
        exact_height = area / exact_width
        by_width = in_steps(exact_width)
        height_by_width = in_steps(by_width / ratio)
        by_height = in_steps(exact_height)
        width_by_height = in_steps(by_height * ratio)
        if error(by_width, height_by_width) < error(width_by_height, by_height):
            resized = (by_width, int(by_width / ratio + 0.5))
        else:
            resized = (int(by_height * ratio + 0.5), by_height)
    return resized, tuple(side - side % step for side in resized)


def placements(options, sizes):
    if options["bucket_no_upscale"]:
        placed = [place_without_upscaling(width, height, options) for width, height in sizes]
    else:
        buckets = bucket_sizes(options)
        placed = [place_in_nearest(width, height, buckets) for width, height in sizes]
    return [{"resized": list(resized), "bucket": list(bucket)} for resized, bucket in placed]


def pixels(picture):
    image = Image.open(picture["file"]).convert("RGB")
    image = image.resize(tuple(picture["resized"]), resample=Image.BICUBIC)
    (width, height), (across, down) = image.size, picture["bucket"]
    left, top = (width - across) // 2, (height - down) // 2
    image = image.crop((left, top, left + across, top + down))
    return hashlib.sha256(image.tobytes()).hexdigest()


def main():
    questions = json.load(sys.stdin)
    answers = {
        "placements": [placements(options, questions["sizes"]) for options in questions["options"]],
        "pixels": [pixels(picture) for picture in questions["pictures"]],
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
