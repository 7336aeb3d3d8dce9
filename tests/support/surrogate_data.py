"""A small data set that a model can learn: smooth functions of four inputs as scalars and an image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from imported_data import import_arrays

INPUTS = ("a", "b", "c", "d")
SCALARS = ("energy", "radius", "time")
SCHEMA = """
inputs: [a, b, c, d]
fields:
  energy: {kind: scalar}
  radius: {kind: scalar}
  time: {kind: scalar, finite: false}
  image: {kind: image, layout: hwc}
samples_per_shard: 500
"""


def arrays(num: int, seed: int = 0) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).uniform(-1, 1, (num, 4))
    a, b, c, d = x.T
    at = np.linspace(-1, 1, 8)
    blob = np.exp(-4 * ((at[:, None] - a[:, None, None]) ** 2 + (at[None, :] - b[:, None, None]) ** 2))
    image = np.stack([blob, blob * (1 + c[:, None, None])], axis=-1).astype(np.float32)
    scalars = {"energy": 1e6 * (1 + a * b), "radius": np.sin(2 * c) + d**2, "time": np.exp(a - d)}
    return {**dict(zip(INPUTS, x.T, strict=True)), **scalars, "image": image}


def make_surrogate_data(folder: Path, num: int = 2000, **changed: np.ndarray) -> Path:
    """Write the data set into `folder`/data; `changed` arrays replace those of the same name."""
    return import_arrays(folder, SCHEMA, {**arrays(num), **changed})
