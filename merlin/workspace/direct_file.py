"""Writes a large file past the page cache where the file system can, through it where not.

What is written so is on its way to the disk at once, and leaves nothing for fsync to wait for: a file of 800 MB is
there several times as soon.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

PAGE = 4096
BLOCK_BYTES = 8 << 20
_BUFFERS = 3


def write_pages(path: Path, parts: Iterable[memoryview]) -> None:
    """Write the bytes of all parts, one after the other, to a new file, and flush it to the disk.

    Copies and writes in another thread while the next part is made; memory: some blocks of `BLOCK_BYTES`.

    Raises:
        OSError: the disk is full, or the like. The file is left as it is.
    """
    with _Writer(path) as writer:
        for part in parts:
            if part.nbytes:
                writer.add(part.cast("B"))


class _Writer:
    def __init__(self, path: Path) -> None:
        self._plain = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            self._direct = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        except (OSError, AttributeError):
            self._direct = -1  # tmpfs and others do not have it
        self._offset = 0  # of the block that is being filled
        self._filled = 0
        self._free = deque(mmap.mmap(-1, BLOCK_BYTES) for _ in range(_BUFFERS))
        self._pool = ThreadPoolExecutor(1, "writer")
        self._jobs: deque[Future[mmap.mmap]] = deque()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._send()
                while self._jobs:
                    self._jobs.popleft().result()
                os.fsync(self._plain)
        finally:
            self._pool.shutdown(cancel_futures=True)
            os.close(self._plain)
            if self._direct >= 0:
                os.close(self._direct)

    def add(self, data: memoryview) -> None:
        while data:
            count = min(len(data), BLOCK_BYTES - self._filled)
            self._free[0][self._filled : self._filled + count] = data[:count]
            data, self._filled = data[count:], self._filled + count
            if self._filled == BLOCK_BYTES:
                self._send()

    def _send(self) -> None:
        if not self._filled:
            return
        buffer = self._free.popleft()
        self._jobs.append(self._pool.submit(self._write, buffer, self._filled, self._offset))
        self._offset, self._filled = self._offset + self._filled, 0
        if not self._free:
            self._free.append(self._jobs.popleft().result())

    def _write(self, buffer: mmap.mmap, num_bytes: int, offset: int) -> mmap.mmap:
        with memoryview(buffer) as view:
            done = self._write_direct(view[: num_bytes // PAGE * PAGE], offset)
            while done < num_bytes:
                done += os.pwrite(self._plain, view[done:num_bytes], offset + done)
        return buffer

    def _write_direct(self, pages: memoryview, offset: int) -> int:
        """How many bytes were written, in whole pages; after a refusal everything goes the other way."""
        if self._direct < 0 or not pages:
            return 0
        try:
            return os.pwrite(self._direct, pages, offset) // PAGE * PAGE
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            os.close(self._direct)
            self._direct = -1
            return 0
