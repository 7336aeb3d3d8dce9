"""NumPy files: a ``.npy`` is one column, the members of an ``.npz`` are several.

A ``.npy`` is memory-mapped. Members of archives are read as they are unpacked, forward, and never held as a whole.
"""

from __future__ import annotations

import lzma
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from merlin.base.stored import read_npy_header, require_unpackable
from merlin.errors import ShardError
from merlin.shards.format.segments import Array, Values
from merlin.shards.importing.source_file import Facts, SourceFile, as_text, with_ragged

_KINDS = "biufcUS"
# what archives raise that are cut off, altered, encrypted, or compressed in a way that Python does not know
_DAMAGED = (
    OSError,
    ValueError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    RuntimeError,
    KeyError,
)


class NpyFile(SourceFile):
    """One array; its key is the file's name without suffix."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            with path.open("rb") as file:
                read_npy_header(file, path.stat().st_size)
            self._array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as e:
            raise ShardError(f"{path}: not a readable .npy file: {e}") from e

    def names(self) -> list[str]:
        return [self.path.stem]

    def has(self, key: str) -> bool:
        return key == self.path.stem

    def _facts(self, key: str) -> Facts:
        return _facts(f"{self.path}", self._array.dtype, self._array.shape)

    def _read(self, key: str, lo: int, hi: int, facts: Facts) -> Values:
        return _values(self._array[lo:hi], facts)

    def place(self, key: str, row: int) -> str:
        return f"{self.path}: row {row}"


class NpzFile(SourceFile):
    """A ragged column `a` is the members ``a.values`` and ``a.offsets``."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
        except _DAMAGED as e:
            raise ShardError(f"{path}: not a readable .npz file: {e}") from e
        self._members: dict[str, _Member] = {}
        self._names = [name.removesuffix(".npy") for name in names if name.endswith(".npy")]

    def names(self) -> list[str]:
        return with_ragged(self._names, ".")

    def has(self, key: str) -> bool:
        return key in self._names or f"{key}.values" in self._names

    def _pair(self, key: str, offsets: str | None) -> tuple[str, str] | None:
        if offsets is not None or key in self._names:
            return super()._pair(key, offsets)
        return f"{key}.values", f"{key}.offsets"

    def _facts(self, key: str) -> Facts:
        member = self._member(key)
        return _facts(member.place, member.dtype, member.shape)

    def _read(self, key: str, lo: int, hi: int, facts: Facts) -> Values:
        return _values(self._member(key).read(lo, hi), facts)

    def _member(self, key: str) -> _Member:
        if key not in self._members:
            if key not in self._names:
                raise ShardError(f"{self.path} has no member '{key}'")
            self._members[key] = _Member(self.path, key)
        return self._members[key]

    def close(self) -> None:
        for member in self._members.values():
            member.close()


class _Member:
    """An array inside an archive, read from streams that are unpacked forward.

    There are two streams, because an import may look at samples before it copies them. Each has a file handle
    of its own: in some releases of Python 3.12 and 3.13, streams that share a handle seek forward from where
    another stream has left it.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.place = f"{path}: '{key}'"
        self._path, self._key = path, key
        self._streams: list[tuple[int, Any]] = []  # (next row, stream)
        self._streams.append((0, self._open()))
        self._row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    def _open(self) -> Any:
        try:
            with zipfile.ZipFile(self._path) as archive:
                member = archive.getinfo(f"{self._key}.npy")
                require_unpackable(member, self._path.stat().st_size)
                stream = archive.open(member)  # keeps the file open
            self.shape, fortran, self.dtype = read_npy_header(stream, member.file_size)
        except _DAMAGED as e:
            raise ShardError(f"{self.place} cannot be read: {e}") from e
        if fortran and len(self.shape) > 1:
            raise ShardError(
                f"{self.place} is stored column by column; save it with numpy.ascontiguousarray(array)"
            )
        return stream

    def read(self, lo: int, hi: int) -> Array:
        """Rows [lo, hi)."""
        at, stream = self._take(lo)
        size = (hi - lo) * self._row_bytes
        try:
            if lo > at:
                stream.seek((lo - at) * self._row_bytes, 1)
            data = stream.read(size)
        except _DAMAGED as e:
            raise ShardError(f"{self.place} cannot be read: {e}") from e
        if len(data) != size:
            raise ShardError(f"{self.place} ends early")
        self._streams.append((hi, stream))
        return np.frombuffer(data, self.dtype).reshape(hi - lo, *self.shape[1:])

    def _take(self, row: int) -> tuple[int, Any]:
        """Take from the list the stream that is nearest before a row; make a new one if all are beyond it."""
        before = [item for item in self._streams if item[0] <= row]
        if before:
            best = max(before, key=lambda item: item[0])
            self._streams.remove(best)
            return best
        if len(self._streams) > 1:
            self._streams.pop(0)[1].close()
        return 0, self._open()

    def close(self) -> None:
        for _, stream in self._streams:
            stream.close()


def _facts(place: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Facts:
    if dtype.kind not in _KINDS:
        what = "Python objects, which are not read" if dtype.kind == "O" else f"{dtype}"
        raise ShardError(f"{place} holds {what}; save numbers or text, e.g. array.astype(str)")
    if not shape:
        raise ShardError(f"{place} is a single value; a column has one for each sample")
    kind = np.dtype(object) if dtype.kind in "US" else dtype
    return Facts(shape[0], kind, tuple(shape[1:]))


def _values(array: Array, facts: Facts) -> Array:
    if array.dtype.kind in "US":
        return as_text(array.ravel().tolist()).reshape(array.shape)
    return as_text(array) if facts.is_text else array
