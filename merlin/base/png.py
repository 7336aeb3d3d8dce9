"""Pictures as PNG files in memory, with zlib alone, and a colour map for numbers."""

from __future__ import annotations

import struct
import zlib
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_TYPES = {1: 0, 3: 2, 4: 6}  # colour type of PNG by the number of channels: grey, RGB, RGBA
_FILTER_UP = 2  # each byte less the one above it: pictures of simulations change little from line to line

# from OKLab to linear sRGB (B. Ottosson, A perceptual color space for image processing, 2020)
_TO_CONES = np.array(
    [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.2914855480]]
)
_TO_RGB = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


def png(pixels: Array) -> bytes:
    """A PNG file of bytes (height, width, channels): 1 channel is grey, 3 are RGB, 4 are RGB and opacity."""
    height, width, channels = pixels.shape
    lines = np.ascontiguousarray(pixels, np.uint8).reshape(height, width * channels)
    changes = np.diff(lines, axis=0, prepend=np.zeros((1, lines.shape[1]), np.uint8))
    filtered = np.column_stack([np.full(height, _FILTER_UP, np.uint8), changes])
    header = struct.pack(">IIBBBBB", width, height, 8, _TYPES[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_part(name, data) for name, data in parts)


def _part(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


@cache
def colour_map() -> Array:
    """256 colours (256, 3) from dark violet over green to light yellow: equal steps look equal, also in grey."""
    at = np.linspace(0.0, 1.0, 256)
    hue = np.radians(300.0 - 195.0 * at)
    low, high = np.zeros(256), np.full(256, 0.14)
    for _ in range(20):  # as much colour as a screen can show of this lightness, by halving
        chroma = (low + high) / 2
        linear = _linear_rgb(0.24 + 0.70 * at, chroma, hue)
        is_shown = ((linear >= 0) & (linear <= 1)).all(axis=1)
        low, high = np.where(is_shown, chroma, low), np.where(is_shown, high, chroma)
    linear = np.clip(_linear_rgb(0.24 + 0.70 * at, low, hue), 0.0, 1.0)
    curved = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.round(255 * curved).astype(np.uint8)


def _linear_rgb(lightness: Array, chroma: Array, hue: Array) -> Array:
    """Linear RGB values (n, 3); they lie outside of [0, 1] if no screen can show the colour."""
    lab = np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)], axis=1)
    linear: Array = (lab @ _TO_CONES.T) ** 3 @ _TO_RGB.T
    return linear


def coloured(values: Array) -> Array:
    """Colours (height, width, 4), bytes, of real numbers (height, width), scaled from the least to the greatest.

    What is not finite is transparent.
    """
    numbers = np.asarray(values, np.float64)
    is_finite = np.isfinite(numbers)
    known = numbers[is_finite] if is_finite.any() else np.zeros(1)
    largest = float(np.abs(known).max()) or 1.0  # so that no difference is too large for a float
    lo, hi = float(known.min()) / largest, float(known.max()) / largest
    share = (
        (np.where(is_finite, numbers, lo) / largest - lo) / (hi - lo)
        if hi > lo
        else np.full(numbers.shape, 0.5)
    )
    index = np.clip(share, 0.0, 1.0) * 255
    pixels = np.empty((*numbers.shape, 4), np.uint8)
    pixels[..., :3] = colour_map()[np.round(index).astype(np.uint8)]
    pixels[..., 3] = np.where(is_finite, 255, 0)
    return pixels
