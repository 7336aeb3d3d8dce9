"""Read rows of a columnar file, as bundles are, at the speed of the disk."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from merlin.base.records import FileFormat
from merlin.errors import ShardError
from merlin.shards.format.segments import Array

_MAX_OPEN = 128  # files with an open descriptor, of one `OpenFiles`


def read_into(descriptor: int, memory: Array, at: int) -> int:
    """Fill `memory` (n,) with the bytes of an open file from `at` on; returns how many there were."""
    num = 0
    while num < len(memory) and (more := os.preadv(descriptor, [memory[num:].data], at + num)):
        num += more
    return num


class OpenFiles:
    """Keeps the files of many readers open, those that were used last, and closes the others."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, tuple[Any, Callable[[], None]]] = OrderedDict()

    def get(self, path: Path, opener: Callable[[], tuple[Any, Callable[[], None]]]) -> Any:
        """The handle of a file: a kept one, or what `opener` makes of the path, with what closes it."""
        known = self._open.get(path)
        if known is None:
            if len(self._open) >= _MAX_OPEN:
                self._open.popitem(last=False)[1][1]()
            known = self._open[path] = opener()
        else:
            self._open.move_to_end(path)
        return known[0]

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1][1]()


class _Place(Struct, frozen=True):
    """Where a contiguous data set lies; offset None: only the library can read it."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int | None


class ColumnReader:
    """Rows of one file. Raises ShardError if it cannot be read.

    It keeps row numbers and the places of its data sets, but no open file: open files are shared in `files`.
    """

    def __init__(self, path: Path, format: FileFormat, files: OpenFiles) -> None:
        import h5py

        self.path = path
        self._files = files
        try:
            with h5py.File(path, "r", locking=False) as file:
                if wrong := format.mismatch(file.attrs):
                    raise ShardError(f"{path}: {wrong}")
                self.rows: Array = file["row"][()]
                self.attempts: Array = np.full(len(self.rows), file.attrs.get("attempt", 0), dtype="<i4")
                filtered = file["filtered"].values() if "filtered" in file else ()
                self.filtered: dict[str, Array] = {
                    str(each.attrs["expression"]): each[()] for each in filtered
                }
                self._places: dict[str, _Place] = {}
                file["fields"].visititems(self._add_place)
        except (OSError, KeyError, RuntimeError, ValueError) as e:
            raise ShardError(f"{path}: cannot be read: {e}") from e

    def read(self, name: str, lo: int, out: Array) -> None:
        """Put rows (or items) [lo, lo + len(out)) of a data set into `out`, which is C-contiguous."""
        try:
            place = self._places[name]
        except KeyError:
            raise ShardError(f"{self.path}: has no '{name}'") from None
        if place.offset is None or place.dtype != out.dtype or place.shape[1:] != out.shape[1:]:
            self._read_with_library(name, lo, out)
        else:
            position = place.offset + lo * (out.nbytes // max(1, len(out)))
            memory = out.reshape(-1).view(np.uint8)
            if read_into(self._files.get(self.path, self._open), memory, position) < len(memory):
                raise ShardError(f"{self.path}: ends early; '{name}' is cut off")

    def _add_place(self, _: str, node: Any) -> None:
        if hasattr(node, "dtype"):  # a data set, and no group
            is_text = node.dtype.kind == "O"
            self._places[node.name[1:]] = _Place(
                node.dtype, node.shape, None if is_text else node.id.get_offset()
            )

    def offsets(self, name: str) -> Array:
        """(n + 1,) of a ragged field: where the items of each of its rows begin."""
        found = np.empty(len(self.rows) + 1, np.int64)
        self.read(f"{name}/offsets", 0, found)
        return found

    def close(self) -> None:
        """Do nothing: the open files belong to `files`."""

    def _open(self) -> tuple[Any, Callable[[], None]]:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        return descriptor, lambda: os.close(descriptor)

    def _read_with_library(self, name: str, lo: int, out: Array) -> None:
        dataset = self._files.get(self.path / "library", self._open_library)[name]
        try:
            if out.dtype.kind == "O":
                out[:] = dataset.asstr()[lo : lo + len(out)]
            else:
                out[...] = dataset[lo : lo + len(out)]
        except (OSError, RuntimeError, ValueError, TypeError) as e:
            raise ShardError(f"{self.path}: '{name}' cannot be read: {e}") from e

    def _open_library(self) -> tuple[Any, Callable[[], None]]:
        import h5py
        import hdf5plugin  # noqa: F401 - registers the decompressors

        file = h5py.File(self.path, "r", locking=False)
        return file, file.close
