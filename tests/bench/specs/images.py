"""A function step that returns noise: images (n, 64, 64, 4) float32 and scalars (n, 15)."""

import numpy as np


def simulate(inputs, context):
    n = len(inputs["X0"])
    random = np.random.default_rng(int(context.sample_ids[0]))
    image = random.random((n, 64, 64, 4), dtype=np.float32)
    return {"image": image, "scalars": random.random((n, 15))}
