"""The structural similarity of images.

Z. Wang, A. C. Bovik, H. R. Sheikh, E. P. Simoncelli: Image quality assessment: from error visibility to structural
similarity. IEEE Transactions on Image Processing 13 (4), 2004.
"""

from __future__ import annotations

import torch
from torch import Tensor

WINDOW, SIGMA = 11, 1.5  # the paper's Gaussian window, in pixels
K1, K2 = 0.01, 0.03


def ssim(found: Tensor, expected: Tensor) -> Tensor:
    """Mean structural similarity of images (n, C, H, W) to the expected ones, channel by channel: (n, C) float64.

    The dynamic range L of the paper is that of the expected image's channel; where that is constant, the result is 1
    for an equal image and that of L = 1 otherwise. The mean is over all places where the window fits, which is smaller
    than the paper's in images of less than 11 pixels.
    """
    num, channels, height, width = expected.shape
    x = found.double().reshape(-1, 1, height, width)
    y = expected.double().reshape(-1, 1, height, width)
    low, high = y.amin((2, 3), keepdim=True), y.amax((2, 3), keepdim=True)
    span = torch.where(high > low, high - low, torch.ones_like(low))
    x, y = (x - low) / span, (y - low) / span  # so that squares of bright images do not swallow differences
    moments = _blurred(torch.cat([x, y, x * x, y * y, x * y]))
    mean_x, mean_y, xx, yy, xy = moments.chunk(5)
    shift = low / span  # the paper's means are those of the pixels themselves
    light_x, light_y = mean_x + shift, mean_y + shift
    c1, c2 = K1**2, K2**2
    structure = (2 * (xy - mean_x * mean_y) + c2) / (xx - mean_x**2 + yy - mean_y**2 + c2)
    light = (2 * light_x * light_y + c1) / (light_x**2 + light_y**2 + c1)
    return (structure * light).mean((1, 2, 3)).reshape(num, channels)


def _blurred(images: Tensor) -> Tensor:
    """Weighted means (n, 1, h, w) over the window, wherever it fits."""
    for axis in (2, 3):
        first, *weights = _weights(images.shape[axis]).tolist()
        fitting = images.shape[axis] - len(weights)
        total = images.narrow(axis, 0, fitting) * first
        # sums of shifted images are five times as fast as a convolution
        for shift, weight in enumerate(weights, 1):
            total.add_(images.narrow(axis, shift, fitting), alpha=weight)
        images = total
    return images


def _weights(size: int) -> Tensor:
    """The window along an axis of `size` pixels."""
    reach = min(WINDOW, size - (size + 1) % 2) // 2
    at = torch.arange(-reach, reach + 1, dtype=torch.float64)
    weights = torch.exp(-(at**2) / (2 * SIGMA**2))
    return weights / weights.sum()
