"""A function step with an output of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np


def simulate(samples: dict[str, np.ndarray], context: Any) -> dict[str, Any]:
    x, y, ids = samples["x"], samples["y"], context.sample_ids
    grid = np.arange(8, dtype=np.float32)
    waves = np.sin(x[:, None, None] * grid[:, None] + y[:, None, None] * grid)
    lengths = ids % 4
    return {
        "energy": x**2 + y,
        "name": np.array([f"sample {i}" for i in ids], dtype=object),
        "trace": (x[:, None] * grid).astype(np.float32),
        "picture": np.stack([waves, -waves], axis=-1).astype(np.float32),
        "block": np.broadcast_to(x[:, None, None, None], (len(x), 2, 3, 4)).astype(np.float32),
        "hits": [np.full((n, 3), i, dtype=np.float32) for n, i in zip(lengths, ids, strict=True)],
    }
