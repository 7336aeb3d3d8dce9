"""Zarr, format 3: one group, arranged like a shard, with one array for each column.

``data.zarr/fields/image``, ``data.zarr/inputs/x``, ``data.zarr/sample_id`` …; a ragged field is a group with the
arrays ``values`` and ``offsets``. An array is cut into files of at most `_FILE_BYTES`, and these into chunks of
about `_CHUNK_BYTES` (Zarr's sharding), so that a single sample is read without its neighbours.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field

from merlin.base.files import TEMPORARY_SUFFIX, name_directory, sync_path
from merlin.errors import MissingExtraError
from merlin.shards.export.base import ExportedFile, Exporter, file_digest, require_count
from merlin.shards.export.view import ExportColumn
from merlin.shards.format.segments import Array, Ragged, offsets_of

NAME = "data.zarr"
_CHUNK_BYTES = 1 << 18
_FILE_BYTES = 32 << 20
_VALUES_STEP = 1 << 20  # for the values of ragged columns, whose files may end inside a sample


class _ArrayPlan(Struct, frozen=True):
    """An array to be made; `step` is a multiple of the rows in a file, and these of the rows in a chunk."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    step: int
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file_rows(self) -> int:
        return _divisor(self.step, _FILE_BYTES // self._row_bytes)

    @property
    def _row_bytes(self) -> int:
        return max(1, self.dtype.itemsize * prod(self.shape[1:]))

    def create(self, group: Any, compression: str) -> None:
        is_text, rows = self.dtype.kind == "O", self.file_rows
        chunk_rows = rows if is_text else _divisor(rows, _CHUNK_BYTES // self._row_bytes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Zarr warns that text has no final specification yet
            group.create_array(
                self.path,
                shape=self.shape,
                dtype=str if is_text else self.dtype,
                chunks=(chunk_rows, *self.shape[1:]),
                shards=(rows, *self.shape[1:]) if rows > chunk_rows else None,
                compressors=_codec(compression),
                fill_value="" if is_text else 0,
                attributes=dict(self.attributes),
            )


class ZarrExporter(Exporter):
    format = "zarr"
    samples_per_file = 4096
    compressions = ("zstd", "blosc", "gzip", "none")

    def check(self) -> None:
        _zarr()
        super().check()

    def file_name(self, number: int) -> str:
        return NAME

    def write(self, path: Path, lo: int, hi: int) -> dict[str, Any]:
        raise NotImplementedError("Zarr's files are written by write_part")

    def count(self, path: Path) -> int:
        return int(_zarr().open_group(path, mode="r")["row"].shape[0])

    def prepare(self, directory: Path) -> None:
        """Create the arrays, under a temporary name that only a finished export loses."""
        final, temporary = directory / NAME, directory / f"{NAME}{TEMPORARY_SUFFIX}"
        if final.exists() and not temporary.exists():
            final.rename(temporary)
        group = _zarr().open_group(temporary, mode="a", zarr_format=3)
        data = self.view.ens.manifest
        group.attrs.update({"study": data.study, "content_digest": data.content_digest})
        for column in self.view.columns:
            for array in self._arrays(column):
                if array.path not in group:
                    array.create(group, self.compression)

    def _arrays(self, column: ExportColumn) -> Iterator[_ArrayPlan]:
        """The arrays that hold a column."""
        known = column.to_json().items()
        attributes = {name: value for name, value in known if name not in ("name", "path", "dtype")}
        path, num = column.path, self.view.num
        if not column.ragged:
            yield _ArrayPlan(path, column.dtype, (num, *column.shape), self.step, attributes)
            return
        shape = (int(self._offsets[column.key][-1]), *column.shape)
        yield _ArrayPlan(f"{path}/values", column.dtype, shape, _VALUES_STEP, attributes)
        yield _ArrayPlan(f"{path}/offsets", np.dtype("<i8"), (num + 1,), self.step)

    @cached_property
    def _offsets(self) -> dict[str, Array]:
        """Where each sample's items begin in `values`: eight bytes for each sample and ragged column."""
        return {
            column.key: offsets_of(self.view.lengths(column, 0, self.view.num))
            for column in self.view.columns
            if column.ragged
        }

    def write_part(self, directory: Path, number: int) -> ExportedFile:
        root = self._root(directory)
        lo, hi = self.range_of(number)
        # files of nothing but zeros are written too, so that a file that is missing was lost
        with warnings.catch_warnings(), _zarr().config.set({"array.write_empty_chunks": True}):
            warnings.simplefilter("ignore")
            group = _zarr().open_group(root, mode="r+")
            for column in self.view.columns:
                if column.ragged:
                    self._write_ragged(group, column, lo, hi)
                else:
                    self._write_rows(group[column.path], column, lo, hi)
        found = np.asarray(group["row"][lo:hi])
        rows = np.asarray(self.view.read(self.view.row, lo, hi))
        require_count(root, hi - lo, int((found == rows).sum()))
        files = sorted(self._files(root, lo, hi))
        for path in files:
            sync_path(path)
        digest = hashlib.sha256()
        for path in files:
            digest.update(f"{path.relative_to(root)} {file_digest(path)}\n".encode())
        size = sum(path.stat().st_size for path in files)
        return ExportedFile(NAME, lo, hi, size, digest.hexdigest(), {"num_files": len(files)})

    def _write_rows(self, array: Any, column: ExportColumn, lo: int, hi: int) -> None:
        """Write one file after the other, because each is encoded as a whole."""
        step = (array.shards or array.chunks)[0]
        for start in range(lo, hi, step):
            end = min(start + step, hi)
            array[start:end] = self.view.read(column, start, end)

    def _write_ragged(self, group: Any, column: ExportColumn, lo: int, hi: int) -> None:
        """Write the offsets of samples [lo, hi), and the files that begin among their values."""
        offsets = self._offsets[column.key]
        last = hi == self.view.num
        group[f"{column.path}/offsets"][lo : hi + last] = offsets[lo : hi + last]
        values = group[f"{column.path}/values"]
        step = (values.shards or values.chunks)[0]
        first = -(-int(offsets[lo]) // step) * step
        end = int(offsets[hi]) if last else -(-int(offsets[hi]) // step) * step
        for start in range(first, end, step):
            stop = min(start + step, int(offsets[-1]))
            values[start:stop] = self._values(column, offsets, start, stop)

    def _values(self, column: ExportColumn, offsets: Array, start: int, stop: int) -> Array:
        """Items [start, stop), counted through all samples."""
        first = int(np.searchsorted(offsets, start, side="right")) - 1
        end = int(np.searchsorted(offsets, stop, side="left"))
        found = self.view.read(column, first, end)
        assert isinstance(found, Ragged)
        base = int(offsets[first])
        return found.values[start - base : stop - base]

    def _files(self, root: Path, lo: int, hi: int) -> Iterator[Path]:
        """The files that `write_part` wrote for samples [lo, hi)."""
        for column in self.view.columns:
            for array in self._arrays(column):
                step = array.file_rows
                if array.path.endswith("/values"):
                    offsets = self._offsets[column.key]
                    start, stop = -(-int(offsets[lo]) // step), -(-int(offsets[hi]) // step)
                else:
                    more = column.ragged and hi == self.view.num
                    start, stop = lo // step, -(-(hi + more) // step)
                rest = "/0" * (len(array.shape) - 1)
                yield from (root / array.path / f"c/{index}{rest}" for index in range(start, stop))

    def is_present(self, directory: Path, part: ExportedFile) -> bool:
        root = self._root(directory)
        try:
            sizes = [path.stat().st_size for path in self._files(root, part.lo, part.hi)]
        except FileNotFoundError:
            return False
        return sum(sizes) == part.size_bytes

    def finish(self, directory: Path, parts: list[ExportedFile]) -> list[str]:
        name_directory(directory / f"{NAME}{TEMPORARY_SUFFIX}", directory / NAME)
        return [NAME]

    @staticmethod
    def _root(directory: Path) -> Path:
        temporary = directory / f"{NAME}{TEMPORARY_SUFFIX}"
        return temporary if temporary.exists() else directory / NAME


def _zarr() -> Any:
    try:
        import zarr
    except ImportError as error:
        raise MissingExtraError("zarr", "export", "writing Zarr") from error
    return zarr


def _codec(name: str) -> Any:
    from zarr import codecs

    match name:
        case "zstd":
            return codecs.ZstdCodec(level=3)
        case "blosc":
            return codecs.BloscCodec(cname="zstd", clevel=5, shuffle=codecs.BloscShuffle.shuffle)
        case "gzip":
            return codecs.GzipCodec(level=4)
    return None


def _divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit` (and at least 1)."""
    best = 1
    for small in range(1, int(number**0.5) + 1):
        if number % small == 0:
            best = max([best, *(d for d in (small, number // small) if d <= limit)])
    return best
