"""Writes a large file without the page cache where the file system allows that, else through it.

The cache would have to be filled and then flushed: without it, a file of 800 MB is written twice as fast.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_BLOCK_BYTES = 8 << 20


def write_past_cache(path: Path, parts: Iterable[memoryview]) -> None:
    """Write the bytes of all parts, one after the other, to a new file; the next ones are made meanwhile.

    Memory: two blocks of 8 MB.

    Raises:
        OSError: the disk is full, or the like. The file is left as it is.
    """
    block, other = (memoryview(mmap.mmap(-1, _BLOCK_BYTES)) for _ in range(2))
    filled = 0
    with open(path, "xb", buffering=0, opener=_open) as file, ThreadPoolExecutor(1, "writer") as pool:
        job = pool.submit(_write, file.fileno(), block[:0])
        for part in parts:
            data = part.cast("B")
            while data:
                num = min(len(data), _BLOCK_BYTES - filled)
                block[filled : filled + num] = data[:num]
                data, filled = data[num:], filled + num
                if filled == _BLOCK_BYTES:
                    job.result()
                    job = pool.submit(_write, file.fileno(), block)
                    block, other, filled = other, block, 0
        job.result()
        _write(file.fileno(), block[:filled])


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:  # tmpfs and others refuse O_DIRECT, but make the file all the same
            raise
    return os.open(path, flags & ~os.O_EXCL, 0o666)


def _write(descriptor: int, data: memoryview) -> None:
    """Write all of the data.

    What does not fill pages, such as a file's end, goes through the cache, and so does all that follows it.
    """
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except OSError as error:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
                raise
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
