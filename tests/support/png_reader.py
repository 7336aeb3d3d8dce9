"""Reads PNG files of 8 bits a channel, to prove those that we write; every checksum is checked."""

from __future__ import annotations

import struct
import zlib

import numpy as np

_CHANNELS = {0: 1, 2: 3, 6: 4}


def read_png(content: bytes) -> np.ndarray:
    """The pixels, (height, width, channels)."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    parts, at = [], 8
    while at < len(content):
        (length,) = struct.unpack_from(">I", content, at)
        name, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", content, at + 8 + length) == (zlib.crc32(name + data),)
        parts.append((name, data))
        at += 12 + length
    assert [name for name, _ in parts] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, kind, compression, filtering, interlace = struct.unpack(">IIBBBBB", parts[0][1])
    assert (depth, compression, filtering, interlace) == (8, 0, 0, 0)
    return _unfiltered(zlib.decompress(parts[1][1]), height, width, _CHANNELS[kind])


def _unfiltered(data: bytes, height: int, width: int, channels: int) -> np.ndarray:
    lines = np.frombuffer(data, np.uint8).reshape(height, 1 + width * channels)
    pixels = np.zeros((height, width * channels), np.uint8)
    for i, line in enumerate(lines):
        assert line[0] in (0, 2), "only lines as they are, or less the line above, are known here"
        above = pixels[i - 1] if i and line[0] == 2 else np.uint8(0)
        pixels[i] = line[1:] + above
    return pixels.reshape(height, width, channels)
