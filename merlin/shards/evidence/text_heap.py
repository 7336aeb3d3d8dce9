"""Text columns of a shard file, read without the HDF5 library, which may loop for ever over a damaged heap.

A value is a reference of 16 bytes (u32 length, u64 address of a collection, u32 index in it). A collection ("GCOL") is
a list of objects: u16 index, u16 count, 4 bytes, u64 size, and the bytes, padded to a multiple of 8 (HDF5 file format
specification 3.0, III.E).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

REFERENCE_BYTES = 16

_REFERENCE = struct.Struct("<IQI")
_OBJECT = struct.Struct("<HHIQ")
_HEAD = struct.Struct("<4sB3xQ")

Read = Callable[[int, int], bytes]  # (offset, size) -> bytes of the file; fewer where it ends


def read_texts(read: Read, references: bytes) -> list[bytes | None]:
    """The values that references (n * 16 bytes) lead to; None for one that leads nowhere."""
    collections: dict[int, dict[int, bytes]] = {}
    found: list[bytes | None] = []
    for length, address, index in _REFERENCE.iter_unpack(references):
        if not length:
            found.append(b"")
            continue
        if address not in collections:
            collections[address] = _collection(read, address)
        value = collections[address].get(index)
        found.append(value if value is not None and len(value) == length else None)
    return found


def _collection(read: Read, address: int) -> dict[int, bytes]:
    """The objects of a collection, as far as they are valid."""
    head = read(address, _HEAD.size)
    if len(head) < _HEAD.size:
        return {}
    mark, version, size = _HEAD.unpack(head)
    if mark != b"GCOL" or version != 1:
        return {}
    content = read(address, size)
    objects: dict[int, bytes] = {}
    at = _HEAD.size
    while at + _OBJECT.size <= len(content):
        index, _, _, num_bytes = _OBJECT.unpack_from(content, at)
        at += _OBJECT.size
        if index == 0 or at + num_bytes > len(content):  # 0: the free rest
            break
        objects[index] = content[at : at + num_bytes]
        at += -(-num_bytes // 8) * 8
    return objects
