"""LBANN: Conduit-style HDF5 bundles with one group for each sample, sample lists and schemas.

``bundles/000/bundle_00000.h5`` holds ``<row>/inputs/<label>``, ``<row>/outputs/scalars/<field>``, ``…/images/…``
and ``<row>/performance/success``. Arrays are flat, as Conduit reads them, with the channels last, which is what
LBANN's normalisation needs; the schemas say their dims. A sample that failed has success 0 and no outputs.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from merlin.errors import UsageError
from merlin.shards.export import lbann_lists, lbann_schemas
from merlin.shards.export.base import ExportedFile, Exporter
from merlin.shards.export.view import Block, ExportColumn
from merlin.shards.format.hdf5_file import NewFile
from merlin.shards.format.segments import Array

_COMPACT_BYTES = 1024  # what Conduit keeps beside an object's header
_FOLDER = 1000  # bundles in one directory


class LbannExporter(Exporter):
    format = "lbann"
    samples_per_file = 1000
    compressions = ("none", "gzip")

    @cached_property
    def _failed(self) -> lbann_lists.FailedRows:
        return lbann_lists.FailedRows(self.view)

    @property
    def num_files(self) -> int:
        """The number of files; one, for the failed samples, if no other samples are exported."""
        return super().num_files or int(len(self._failed) > 0)

    def check(self) -> None:
        super().check()
        num = len(lbann_lists.training_positions(self.view))
        if self.options.trainers > num:
            raise UsageError(
                f"--trainers {self.options.trainers} are more than the {num} samples to train on"
            )

    def refusal(self, column: ExportColumn) -> str:
        if column.ragged:
            return "LBANN reads the same number of values from every sample, and this field has any number"
        if column.dtype.kind == "c":
            return "LBANN has no complex numbers"
        return ""

    def file_name(self, number: int) -> str:
        return f"bundles/{number // _FOLDER:03d}/bundle_{number:05d}.h5"

    def prepare(self, directory: Path) -> None:
        if any(letter.isspace() for letter in str(directory.resolve())):
            raise UsageError(f"LBANN's sample lists cannot hold a path with blanks: {directory.resolve()}")

    def write(self, path: Path, lo: int, hi: int) -> dict[str, Any]:
        failed = self._failed.among(lo, hi)
        with NewFile(path, libver=("v108", "v110")) as new:
            bundle = _Bundle(new.file, self.compression)
            row_name = self.view.row.key
            for _, block in self.view.blocks(lo, hi):
                stored = _flatten(self.view.columns, block)
                for i, row in enumerate(np.asarray(block[row_name]).tolist()):
                    bundle.add(row, [(where, values[i : i + 1]) for where, values in stored])
                new.check()
            for row in failed.tolist():
                bundle.add(row, None)
        return {"num_failed": len(failed)}

    def count(self, path: Path) -> int:
        """Samples with success 1."""
        import h5py

        success, num = np.empty(1, "<i4"), 0
        with h5py.File(path, "r") as file:
            for name in file:
                dataset = h5py.h5d.open(file.id, f"{name}/performance/success".encode())
                dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, success)
                num += int(success[0])
        return num

    def finish(self, directory: Path, parts: list[ExportedFile]) -> list[str]:
        schemas = lbann_schemas.write_schemas(directory, self.view)
        return [
            *schemas,
            *lbann_lists.write_lists(directory, self.view, self._failed, parts, self.options.trainers),
        ]


def _flatten(columns: tuple[ExportColumn, ...], block: Block) -> list[tuple[str, Array]]:
    """(place inside a sample, rows of flat values) for each column that goes into a sample."""
    stored = []
    for column in columns:
        if column.group == "ids":
            continue
        values = np.asarray(block[column.key])
        if column.is_text:
            values = np.array([text.encode() for text in values.tolist()], dtype=object)
        else:
            values = lbann_schemas.channels_last(column, values)
            values = values.reshape(len(values), -1).astype(lbann_schemas.stored_dtype(column), copy=False)
        stored.append((lbann_schemas.place(column), values))
    return stored


class _Bundle:
    """Writes samples past h5py's high-level interface, which takes most of the time for data sets this small."""

    def __init__(self, file: Any, compression: str) -> None:
        import h5py

        self._h5 = h5py
        self._file = file
        self._compression = compression
        self._spaces: dict[int, Any] = {}
        self._types: dict[np.dtype[Any], Any] = {}
        self._compact = self._timeless(h5py.h5p.DATASET_CREATE)
        self._compact.set_layout(h5py.h5d.COMPACT)
        self._group_properties = self._timeless(h5py.h5p.GROUP_CREATE)

    def _timeless(self, kind: Any) -> Any:
        """Properties without times: equal data makes equal files."""
        properties = self._h5.h5p.create(kind)
        properties.set_obj_track_times(False)
        return properties

    def add(self, row: int, values: list[tuple[str, Array]] | None) -> None:
        """A sample with its values; None for one that failed."""
        groups: dict[str, Any] = {"": self._create_group(self._file.id, f"{row:09d}")}
        for place, data in values or ():
            self._put(place, data, groups)
        self._put("performance/success", np.array([values is not None], dtype="<i4"), groups)

    def _create_group(self, parent: Any, name: str) -> Any:
        return self._h5.h5g.create(parent, name.encode(), None, self._group_properties)

    def _group(self, path: str, groups: dict[str, Any]) -> Any:
        if path not in groups:
            parent, _, name = path.rpartition("/")
            groups[path] = self._create_group(self._group(parent, groups), name)
        return groups[path]

    def _put(self, place: str, data: Array, groups: dict[str, Any]) -> None:
        h5 = self._h5
        parent, _, name = place.rpartition("/")
        if data.dtype.kind == "O":  # text: fixed-length characters, as Conduit has them
            data = np.frombuffer(data[0] + b"\0", "S1").copy()
        data = data.reshape(-1)
        if len(data) not in self._spaces:
            self._spaces[len(data)] = h5.h5s.create_simple((len(data),))
        if data.dtype not in self._types:
            self._types[data.dtype] = h5.h5t.py_create(data.dtype, logical=True)
        space, kind = self._spaces[len(data)], self._types[data.dtype]
        group, properties = self._group(parent, groups), self._properties(data)
        dataset = h5.h5d.create(group, name.encode(), kind, space, properties)
        dataset.write(h5.h5s.ALL, h5.h5s.ALL, data, kind)

    def _properties(self, data: Array) -> Any:
        if data.nbytes <= _COMPACT_BYTES:
            return self._compact
        properties = self._timeless(self._h5.h5p.DATASET_CREATE)
        if self._compression == "gzip":
            properties.set_chunk((len(data),))
            properties.set_shuffle()
            properties.set_deflate(4)
        return properties
