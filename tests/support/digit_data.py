"""Noisy pictures of the digits of a seven-segment display: a small data set for classifiers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from imported_data import import_arrays

SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
LINES = {
    "a": (1, slice(3, 6)), "g": (4, slice(3, 6)), "d": (7, slice(3, 6)),
    "f": (slice(1, 5), 2), "b": (slice(1, 5), 6), "e": (slice(4, 8), 2), "c": (slice(4, 8), 6),
}  # fmt: skip
SCHEMA = """
inputs: [brightness]
fields:
  image: {kind: image}
  label: {kind: scalar}
  margins: {kind: series}
samples_per_shard: 300
"""


def digits(num: int, seed: int = 0) -> dict[str, np.ndarray]:
    """`image` (n, 9, 9) uint8, `label` (n,) int64, `brightness` (n,) and `margins` (n, 9): sums over the lines."""
    random = np.random.default_rng(seed)
    label = random.integers(0, 10, num)
    image = np.zeros((num, 9, 9))
    for picture, digit in zip(image, label, strict=True):
        for segment in SEGMENTS[digit]:
            picture[LINES[segment]] = 1
    brightness = random.uniform(100, 200, num)
    image = image * brightness[:, None, None] + random.normal(20, 10, image.shape)
    image = np.clip(image, 0, 255).astype(np.uint8)
    margins = image.sum(axis=2).astype(np.float32)
    return {"image": image, "label": label, "brightness": brightness, "margins": margins}


def make_digit_data(folder: Path, num: int = 1200, schema: str = SCHEMA, **changed: np.ndarray) -> Path:
    """Write the data set into `folder`/data; `changed` arrays replace those of the same name."""
    return import_arrays(folder, schema, {**digits(num), **changed}, name="digits")
