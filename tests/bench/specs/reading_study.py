"""A function step that returns smooth images (n, 64, 64, 4) float32 with a little noise, and 15 scalars."""

import numpy as np

_Y, _X = np.meshgrid(np.linspace(-1, 1, 64), np.linspace(-1, 1, 64), indexing="ij")


def simulate(inputs, context):
    x = np.stack([inputs[f"X{k}"] for k in range(5)], axis=1)
    random = np.random.default_rng(int(context.sample_ids[0]))
    image = np.empty((len(x), 64, 64, 4), dtype=np.float32)
    for i, (a, b, c, d, e) in enumerate(x):
        radius = np.hypot(_X - a + 0.5, _Y - b + 0.5)
        for channel in range(4):
            image[i, :, :, channel] = np.exp(-((radius / (0.2 + c)) ** 2) * (channel + 1)) * np.cos(
                9 * d * radius + e
            )
    image += 1e-3 * random.standard_normal(image.shape, dtype=np.float32)
    np.round(image, 4, out=image)
    return {"image": image, **{f"s{k:02d}": x @ random.random(5) for k in range(15)}}
