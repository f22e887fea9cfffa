"""Says which of the toy checkpoint's shapes and colours a picture shows.

The shape is the largest connected part that stands out from the ground, which is the colour of the picture's edge. Its
colour is the one of the ten nearest to the middle of its pixels; its shape is that of the eight whose outline, sharp or
blunted, scaled to the same box, overlaps best with it.
"""
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fixtures"))

from draw_concept import COLOURS, GROUNDS, SHAPES, draw  # noqa: E402

# Sum over the channels of how far a pixel has to be from the ground to belong to the shape.
FOREGROUND_DISTANCE = 90
BOX = 32
# A shape that overlaps less than this with its best template is none.
MIN_OVERLAP = 0.5


def foreground(pixels):
    """Mask [h, w] of the pixels that differ from the picture's edge."""
    edge = np.concatenate([pixels[:2].reshape(-1, 3), pixels[-2:].reshape(-1, 3), pixels[:, :2].reshape(-1, 3),
                           pixels[:, -2:].reshape(-1, 3)])
    ground = np.median(edge, axis=0)
    return largest_part(np.abs(pixels - ground).sum(axis=2) > FOREGROUND_DISTANCE), ground


def largest_part(mask):
    """The largest part of a mask [h, w] whose pixels touch, corners included: specks beside a shape are not its outline."""
    best, left = np.zeros_like(mask), set(zip(*np.where(mask)))
    while left:
        part, edge = set(), [left.pop()]
        while edge:
            row, column = edge.pop()
            part.add((row, column))
            near = {(row + i, column + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & left
            left -= near
            edge.extend(near)
        if len(part) > best.sum():
            best = np.zeros_like(mask)
            best[tuple(zip(*part))] = True
    return best


def in_box(mask):
    """The mask's bounding box, scaled to BOX x BOX; None where there is next to nothing."""
    rows, columns = np.where(mask)
    if len(rows) < 0.01 * mask.size:
        return None
    cut = mask[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    scaled = Image.fromarray((cut * 255).astype(np.uint8)).resize((BOX, BOX), Image.Resampling.BOX)
    return np.asarray(scaled) > 127


# Generated shapes have rounded corners and filled notches: blur in pixels of 64, and the level that is still shape.
BLUNTING = [(0, 128)] + [(blur, level) for blur in (1.5, 2.5, 3.5) for level in (80, 128, 160)]


def make_templates():
    """Every shape's masks in its box: {name: [mask]}."""
    for shape in SHAPES:
        picture = draw(shape, (255, 255, 255), (0, 0, 0), 0.32, (0.5, 0.5), 64)
        yield shape, [in_box(np.asarray(picture.filter(ImageFilter.GaussianBlur(blur)))[..., 0] >= level)
                      for blur, level in BLUNTING]


TEMPLATES = dict(make_templates())


def nearest(colour, names):
    return min(names, key=lambda name: np.abs(np.array(names[name]) - colour).sum())


def measure(image):
    """{shape, colour, ground, overlap}: `overlap` is the best shape's intersection over union, 0 where none is."""
    pixels = np.asarray(image.convert("RGB").resize((64, 64), Image.Resampling.BOX), dtype=float)
    mask, ground = foreground(pixels)
    box = in_box(mask)
    result = {"shape": None, "colour": None, "ground": nearest(ground, GROUNDS), "overlap": 0.0}
    if box is None:
        return result
    overlaps = {name: max((box & t).sum() / (box | t).sum() for t in masks) for name, masks in TEMPLATES.items()}
    best = max(overlaps, key=overlaps.get)
    colour = np.median(pixels[mask], axis=0)
    return {**result, "shape": best, "colour": nearest(colour, COLOURS), "overlap": round(float(overlaps[best]), 3)}
