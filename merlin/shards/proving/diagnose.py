"""From damaged bytes to damaged samples: what happened to a shard file, and which rows it concerns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import numpy as np
from msgspec import Struct

from merlin.base.field import TEXT_DTYPE
from merlin.base.ranges import numbers
from merlin.errors import ShardError
from merlin.shards.evidence.previous import ProvenRows
from merlin.shards.evidence.scan import ColumnFindings
from merlin.shards.evidence.stored import StoredShard
from merlin.shards.format.digest import digest_text
from merlin.shards.format.row_check import FIELDS, GIVEN, group_of
from merlin.shards.format.rows import NO_ROWS
from merlin.shards.format.segments import Array
from merlin.shards.format.shard_info import DatasetInfo, ShardInfo
from merlin.shards.proving.compare import ShardProblems, places_of_items, schema_differences, schema_of
from merlin.shards.proving.damage import DataSetProblem, in_rows, lost_rows

_IDS = ("row", "sample_id")


class Symptoms(Struct, frozen=True):
    """What reading a shard file has shown."""

    findings: Mapping[str, ColumnFindings]  # by column; those without findings may be left out
    is_skeleton_intact: bool
    size_bytes: int

    def is_healthy(self, info: ShardInfo) -> bool:
        """True if every byte that was read is as `info` has it."""
        is_intact = self.size_bytes == info.size_bytes and self.is_skeleton_intact
        return is_intact and not any(found.bad for found in self.findings.values())

    def bad(self, dataset: DatasetInfo) -> list[tuple[int, int]]:
        return self.findings[dataset.name].bad if dataset.name in self.findings else []


class Diagnosis:
    """Turns the symptoms of one shard into problems."""

    def __init__(self, problems: ShardProblems, info: ShardInfo, symptoms: Symptoms) -> None:
        """`info` is the sidecar of the shard that the manifest names, not of one that may have taken its place."""
        self._problems, self._info, self._symptoms = problems, info, symptoms
        self._add, self._path, self._expected = problems.add, problems.path, problems.expected
        self._num_before = len(problems.found)
        self._stored = StoredShard.by_sidecar(self._path, info)
        self._own = None if symptoms.is_skeleton_intact else open_by_itself(self._path)
        problems.lost, self._given = self._unproven()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stored.close()
        if self._own is not None:
            self._own.close()

    def add_all(self) -> None:
        """Add problems which together name every row whose fields are not proven."""
        if self._is_foreign():
            return
        self._judge_size()
        self._judge_schema()
        self._judge_ids()
        for dataset in self._info.datasets:
            self._judge_column(dataset)
        self._judge_rest()

    def _found(self) -> list[DataSetProblem]:
        return self._problems.found[self._num_before :]

    # ------------------------------------------------------------ what is lost

    def _unproven(self) -> tuple[Array, Array]:
        """Expected rows whose fields, and whose inputs or parameters, are not proven to be what was written."""
        try:
            proven = ProvenRows(self._path, self._info)
        except ShardError:  # the sidecar has no check values: all rows of damaged blocks are lost
            lost: dict[int, list[Array]] = {FIELDS: [NO_ROWS], GIVEN: [NO_ROWS]}
            for dataset in self._info.datasets:
                group = _group_of(dataset)
                if group is not None:
                    lost[group].append(self._candidates(dataset))
            return np.unique(np.concatenate(lost[FIELDS])), np.unique(np.concatenate(lost[GIVEN]))
        proven.close()
        return np.setdiff1d(self._expected, proven.rows), np.setdiff1d(self._expected, proven.given)

    def _candidates(self, dataset: DatasetInfo) -> Array:
        """Rows that have values in the damaged blocks of a column."""
        if dataset.dtype != TEXT_DTYPE:
            bad = self._symptoms.bad(dataset)
        else:
            bad = [] if self._symptoms.is_skeleton_intact else self._bad_text(dataset)
        return self._rows_of(dataset, [np.arange(a, b) for a, b in bad])

    def _bad_text(self, dataset: DatasetInfo) -> list[tuple[int, int]]:
        """Blocks of a text column that read differently, or cannot be read."""
        num_rows, step = dataset.shape[0], dataset.block_rows
        bad = []
        for number, digest in enumerate(dataset.blocks):
            lo, hi = number * step, min((number + 1) * step, num_rows)
            try:
                is_bad = digest_text(self._stored.read(dataset.name, lo, hi).tolist()) != digest
            except (ShardError, UnicodeEncodeError):
                is_bad = True
            if is_bad:
                bad.append((lo, hi))
        return bad

    def _rows_of(self, dataset: DatasetInfo, places: list[Array]) -> Array:
        """Row numbers of places in a column: of rows, of items, or of entries of offsets."""
        found = np.unique(np.concatenate([NO_ROWS, *places]))
        if len(found) and dataset.ragged and dataset.name.endswith("/values"):
            found = places_of_items(found, self._offsets(dataset), len(self._expected))
        elif dataset.ragged:
            found = np.union1d(found - 1, found)
        found = found[(found >= 0) & (found < len(self._expected))]
        return np.asarray(self._expected[found])

    def _offsets(self, dataset: DatasetInfo) -> Array | None:
        try:
            return self._stored.offsets(dataset.name.removesuffix("/values"))
        except ShardError:
            return None

    # ------------------------------------------------------------ the file

    def _is_foreign(self) -> bool:
        """Note a shard of another study or place, and return True: nothing else need be said about it."""
        marks = "" if self._own is None else self._problems.foreign_marks(self._own.attributes)
        if marks:
            message = f"it is a shard of another place: {marks}"
            self._add("foreign shard", message, rows=self._problems.lost)
        return bool(marks)

    def _judge_size(self) -> None:
        size, expected = self._symptoms.size_bytes, self._problems.entry.size_bytes
        if size == expected or self._own is not None:
            return  # an intact file of another size holds other rows, which are compared below
        message = f"expected {expected} bytes, found {size}"
        if size > expected:
            self._add("flipped bytes", message)
            return
        cut = [self._rows_beyond(dataset, size) for dataset in self._info.datasets]
        rows = np.intersect1d(np.concatenate([NO_ROWS, *cut]), self._problems.lost)
        self._add("truncated", message, rows=rows)

    def _rows_beyond(self, dataset: DatasetInfo, size: int) -> Array:
        """Rows with bytes after the end of the file; exact to the row where the place of rows is known."""
        places = []
        for extent in dataset.extents:
            if extent.offset + extent.nbytes <= size:
                continue
            lo = extent.lo
            if not dataset.is_compressed and extent.offset < size:
                lo += (size - extent.offset) // (extent.nbytes // (extent.hi - extent.lo))
            places.append(np.arange(lo, extent.hi))
        return self._rows_of(dataset, places)

    def _judge_schema(self) -> None:
        """Note data sets that the file itself describes differently from its sidecar."""
        if self._own is None:
            return
        own = {name: (column.dtype, column.shape[1:]) for name, column in self._own.columns.items()}
        for name, message in schema_differences(schema_of(self._info.datasets), own):
            rows = self._problems.lost if group_of(name) == FIELDS else NO_ROWS
            self._add("wrong schema", message, dataset=name, rows=rows)

    def _judge_ids(self) -> None:
        """Note rows that are in the file twice, do not belong there, or are not there."""
        source = self._stored if self._own is None else self._own
        try:
            rows, ids = (source.read(name, 0, source.columns[name].shape[0]) for name in _IDS)
        except (ShardError, KeyError, IndexError):
            return
        for kind, message, concerned in self._problems.compare_ids(rows, ids):
            self._add(kind, message, rows=concerned)

    # ------------------------------------------------------------ columns

    def _judge_column(self, dataset: DatasetInfo) -> None:
        candidates = self._candidates(dataset)
        if not (self._symptoms.bad(dataset) or len(candidates)) or self._is_known(dataset):
            return
        rows = candidates
        group = _group_of(dataset)
        if group is not None:
            rows = np.intersect1d(candidates, self._problems.lost if group == FIELDS else self._given)
            if not len(rows) and dataset.dtype == TEXT_DTYPE:
                return  # another text of the file is damaged, or what is between the texts
        if self._symptoms.size_bytes < self._problems.entry.size_bytes:
            cut_off = numbers(r for p in self._found() if p.kind == "truncated" for r in p.rows)
            rows = np.setdiff1d(rows, cut_off)
            if not len(rows):
                return
        what = "texts differ" if dataset.dtype == TEXT_DTYPE else "stored bytes differ"
        rows = rows if len(rows) else candidates
        self._add("flipped bytes", f"{what} in {in_rows(rows)}", dataset=dataset.name, rows=rows)

    def _is_known(self, dataset: DatasetInfo) -> bool:
        """True if a problem of another kind says what is wrong with a column."""
        found = self._found()
        if dataset.name in _IDS:
            return any("sample id" in p.kind or p.kind == "count mismatch" for p in found)
        return any(p.kind == "wrong schema" and p.dataset == dataset.name for p in found)

    def _judge_rest(self) -> None:
        """Note lost rows that no problem names yet, and damage that concerns no row."""
        left = np.setdiff1d(self._problems.lost, lost_rows(self._found()))
        if len(left):
            self._add("flipped bytes", f"the values of {in_rows(left)} cannot be proven", rows=left)
        if not self._symptoms.is_skeleton_intact and not self._found():
            self._add("flipped bytes", "bytes differ in its headers, attributes or gaps")


def _group_of(dataset: DatasetInfo) -> int | None:
    """The group of check values that covers a column; offsets belong to the group of their values."""
    return group_of(dataset.name.replace("/offsets", "/values"))


def open_by_itself(path: Path) -> StoredShard | None:
    """The file as its own headers describe it; None if they are damaged."""
    try:
        return StoredShard.by_itself(path)
    except ShardError:
        return None
