"""Checks whether a file can hold as much data as it claims. The sizes in a foreign file may be wrong."""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Sequence
from math import prod
from tokenize import TokenError
from typing import IO, Any

import numpy as np

FREE_BYTES = 64 << 20  # what a file may claim without any proof: values that were never written are zeros
DEFLATE = 1100  # no byte of deflate unpacks to more (1,032)
MOST = 1 << 16  # of any other compression
_ROW_BYTES = 8
_HEADER_BYTES = 10_000  # of a .npy file; NumPy reads no longer ones either
# what NumPy raises for a damaged header
_DAMAGED = (ValueError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError, OverflowError)


def require_stored(shape: Sequence[int], itemsize: int, stored_bytes: int, ratio: int) -> None:
    """Raise ValueError unless `stored_bytes` can hold an array, if each of them unpacks to at most `ratio` bytes.

    A row counts as at least `_ROW_BYTES`, because its id takes that much memory.
    """
    if any(size < 0 for size in shape):
        raise ValueError(f"its shape {tuple(shape)} cannot be")
    claimed = max(prod(shape) * itemsize, _ROW_BYTES * shape[0] if shape else 0)
    if claimed > FREE_BYTES + ratio * stored_bytes:
        each = f" of {itemsize} bytes each" if itemsize else ""
        raise ValueError(
            f"it says that it has the shape {tuple(shape)}{each}, and holds {stored_bytes:,} bytes: "
            "it is damaged, or was made to fill disks"
        )


def read_npy_header(file: IO[bytes], num_bytes: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and type of a .npy file of `num_bytes`; `file` is at its values afterwards.

    Raises ValueError if there is no valid header, or if it claims more values than the file has bytes. Raises OSError.
    """
    magic = file.read(8)
    if len(magic) < 8 or magic[:6] != b"\x93NUMPY" or magic[6] not in (1, 2, 3):
        raise ValueError("it does not begin as a .npy file")
    width = 2 if magic[6] == 1 else 4
    length = file.read(width)
    size = int.from_bytes(length, "little")
    if len(length) < width or size > _HEADER_BYTES:
        raise ValueError("its header is damaged")
    header = io.BytesIO(length + file.read(size))
    read = np.lib.format.read_array_header_1_0 if width == 2 else np.lib.format.read_array_header_2_0
    try:
        shape, fortran, dtype = read(header)
    except _DAMAGED as error:
        raise ValueError(f"its header is damaged: {' '.join(str(error).split())[:200]}") from error
    if not all(type(size) is int for size in shape):
        raise ValueError(f"its header is damaged: the shape {shape}")
    if not dtype.itemsize:
        raise ValueError("its header is damaged: values of no bytes")
    left = num_bytes - len(magic) - width - size
    require_stored(shape, 0, left, _ROW_BYTES)
    if prod(filter(None, shape)) * dtype.itemsize > sys.maxsize:  # an empty array has such a limit, too
        raise ValueError(f"its header is damaged: no array has the shape {shape}")
    if prod(shape) * dtype.itemsize > left:
        raise ValueError(
            f"its header says {shape} values of {dtype.itemsize} bytes, and {max(0, left):,} bytes follow: "
            "it is damaged, or incomplete"
        )
    return shape, fortran, dtype


def require_unpackable(member: zipfile.ZipInfo, archive_bytes: int) -> None:
    """Raise ValueError if a member of an archive claims to unpack to more than is possible."""
    stored = min(member.compress_size, archive_bytes)
    ratio = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: DEFLATE}.get(member.compress_type, MOST)
    if member.file_size > FREE_BYTES + ratio * stored:
        raise ValueError(
            f"{member.filename} says that its {stored:,} bytes unpack to {member.file_size:,}: "
            "the archive is damaged, or was made to fill disks"
        )
