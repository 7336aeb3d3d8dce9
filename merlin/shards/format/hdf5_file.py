"""New HDF5 files on disks that may be full.

Where a write fails, the HDF5 library may end the process when it closes the file, or later, when the process
ends. So the library gets no error: its bytes go through `_Storage`, which keeps the first error for the
writer of the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

_HELD_BYTES = 1 << 20


class NewFile:
    """An HDF5 file to be written: `with NewFile(path) as new: new.file["x"] = …`.

    Leaving the block closes the file, and raises the first error of its storage (OSError: no space, quota,
    file size). Call `check` from time to time where much is written. After an error the file is useless.
    """

    def __init__(self, path: Path, mode: str = "w", **options: Any) -> None:
        """`mode`: "w" for an empty file, "r+" for one that is there; `options` are those of h5py.File."""
        import h5py

        self._storage = _Storage(path, os.O_RDWR | (os.O_CREAT | os.O_TRUNC if mode == "w" else 0))
        try:
            self.file = h5py.File(path, mode, driver="fileobj", fileobj=self._storage, **options)
        except BaseException:
            self._storage.close()
            raise

    def check(self) -> None:
        """Raise the first error of the storage, if any."""
        if self._storage.error is not None:
            raise self._storage.error

    def close(self) -> None:
        """Close the file, which writes what the library still holds; raises as `check` does."""
        try:
            self.file.close()
        finally:
            self._storage.close()
            self.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Storage:
    """The bytes of a file, for the library's `fileobj` driver; its methods never fail.

    After an error the library goes on as if everything were written, and reads zeros. What it writes in pieces that
    follow each other (compressed chunks, headers) is written together.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self.error: BaseException | None = None
        self._path = path
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        self._at = 0
        self._size = os.fstat(self._descriptor).st_size  # as the library knows it
        self._held = memoryview(bytearray(_HELD_BYTES))
        self._num_held = 0  # bytes that are not yet written
        self._held_end = 0  # where they end in the file

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def write(self, content: Any) -> int:
        at, num_bytes = self._at, len(content)
        self._at = end = at + num_bytes
        if end > self._size:
            self._size = end
        if at != self._held_end or self._num_held + num_bytes > _HELD_BYTES:
            self.flush()
            if num_bytes > _HELD_BYTES:
                self._write(memoryview(content), at)
                return num_bytes
        self._held[self._num_held : self._num_held + num_bytes] = content
        self._num_held += num_bytes
        self._held_end = end
        return num_bytes

    def flush(self) -> None:
        num_bytes, self._num_held = self._num_held, 0
        self._write(self._held[:num_bytes], self._held_end - num_bytes)

    def _write(self, left: memoryview, at: int) -> None:
        with self._keeping_errors():
            while left and self.error is None:
                written = os.pwrite(self._descriptor, left, at)
                left, at = left[written:], at + written

    def truncate(self, size: int) -> int:
        self._size = size
        self.flush()
        with self._keeping_errors():
            if self.error is None:
                os.ftruncate(self._descriptor, size)
        return size

    def readinto(self, target: Any) -> int:
        content = b""
        self.flush()
        with self._keeping_errors():
            content = os.pread(self._descriptor, len(target), self._at)
        memoryview(target)[:] = content.ljust(len(target), b"\0")
        self._at += len(target)
        return len(target)

    def close(self) -> None:
        if self._descriptor >= 0:
            self.flush()
            os.close(self._descriptor)
            self._descriptor = -1

    @contextmanager
    def _keeping_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - what a handler of a signal raises waits, too
            if isinstance(error, OSError):
                error.filename = str(self._path)
            self.error = self.error or error
