"""Everything that is checked about one shard: the file, its sidecar, its headers, its values."""

from __future__ import annotations

import os
from concurrent.futures import Executor
from typing import Any

import numpy as np

from merlin.base.field import TEXT_DTYPE
from merlin.errors import ShardError
from merlin.shards.evidence.bounds import bounds_of
from merlin.shards.evidence.probe import plain
from merlin.shards.evidence.scan import ColumnFindings, Tick, jobs_of
from merlin.shards.evidence.stored import StoredShard
from merlin.shards.format.digest import digest_bytes
from merlin.shards.format.manifest_file import DataSet, ShardEntry
from merlin.shards.format.regular_file import require_regular
from merlin.shards.format.segments import Array
from merlin.shards.format.shard_info import (
    SHARD_FORMAT,
    DatasetInfo,
    ShardInfo,
    info_name,
    read_info,
    skeleton_digest,
)
from merlin.shards.proving.compare import ShardProblems, places_of_items, schema_differences, schema_of
from merlin.shards.proving.damage import DataSetProblem, Kind, in_rows
from merlin.shards.proving.diagnose import Diagnosis, Symptoms, open_by_itself
from merlin.shards.proving.reread import content_digest


def check_shard(
    data: DataSet, entry: ShardEntry, *, scanners: Executor, tick: Tick, quick: bool
) -> list[DataSetProblem]:
    """The problems of one shard, whose values are read by the `scanners`."""
    check = _ShardCheck(data, entry, scanners, tick, quick)
    check.run()
    return check.problems.found


class _ShardCheck:
    def __init__(self, data: DataSet, entry: ShardEntry, scanners: Executor, tick: Tick, quick: bool) -> None:
        self._data, self._entry, self._quick = data, entry, quick
        self._scanners, self._tick = scanners, tick
        self.problems = ShardProblems(data, entry)
        self._add, self._path = self.problems.add, self.problems.path
        self._descriptor, self._size = -1, 0

    def run(self) -> None:
        num_expected = len(self.problems.expected)
        if num_expected != self._entry.num_rows:
            message = (
                f"{num_expected} of its tasks ended ok, the manifest gives it {self._entry.num_rows} rows"
            )
            self._add("count mismatch", message)
        info = self._read_sidecar()
        try:
            require_regular(self._path)
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            is_gone = isinstance(e, FileNotFoundError)
            message = "the file is not there" if is_gone else f"cannot be opened: {e.strerror}"
            self.problems.add_all_lost("missing file", message)
            return
        try:
            self._size = os.fstat(self._descriptor).st_size
            if info is not None:
                self._check_with_sidecar(info)
            elif not self._quick and self._reread() != self._entry.content_digest:
                self._lost_without_proof("without its sidecar it cannot be told which rows are damaged")
        finally:
            os.close(self._descriptor)

    def _read_sidecar(self) -> ShardInfo | None:
        name = info_name(self._entry.shard)
        path = self._data.directory / name
        try:
            content = path.read_bytes()
            info = read_info(path)
        except FileNotFoundError:
            self._add("missing file", "the sidecar is not there", file=name)
            return None
        except (OSError, ShardError) as e:
            self._add("damaged sidecar", str(e), file=name)
            return None
        if digest_bytes(content) != self._entry.info_digest:
            what = "though of the same" if self._is_ours(info) else "and of another"
            message = f"it is not the one that the manifest was made from, {what} content"
            self._add("damaged sidecar", message, file=name)
        return info

    def _is_ours(self, info: ShardInfo) -> bool:
        """True if the sidecar describes the content that the manifest names."""
        return info.content_digest == self._entry.content_digest

    def _reread(self) -> str:
        """The content digest of a shard without a sidecar; "" if it cannot be read."""
        try:
            with StoredShard.by_itself(self._path) as stored:
                return content_digest(stored)
        except ShardError:
            return ""
        finally:
            self._tick(self._size)

    def _check_with_sidecar(self, info: ShardInfo) -> None:
        symptoms = self._examine(info, with_values=not self._quick)
        if self._quick and not symptoms.is_healthy(info):
            symptoms = self._examine(info, with_values=True)
        if not self._is_ours(info):
            self._judge_other_version(info, symptoms)
        elif symptoms.is_healthy(info):
            self._check_inside(info, symptoms)
        else:
            with Diagnosis(self.problems, info, symptoms) as diagnosis:
                diagnosis.add_all()

    def _examine(self, info: ShardInfo, *, with_values: bool) -> Symptoms:
        """Read the file, but its values only if these are asked for."""
        fields = {field.path: field for field in self._data.fields}
        jobs = []
        if with_values:
            jobs = list(jobs_of(info, lambda d: bounds_of(d, fields.get(d.name.removesuffix("/values")))))
        scans = [self._scanners.submit(job.run, self._descriptor, self._tick) for job in jobs]
        is_intact = skeleton_digest(self._path, info.datasets) == info.skeleton
        if with_values:
            self._tick(max(0, self._size - sum(e.nbytes for d in info.datasets for e in d.extents)))
        findings: dict[str, ColumnFindings] = {}
        for job, scan in zip(jobs, scans, strict=True):
            findings.setdefault(job.dataset.name, ColumnFindings()).add(scan.result())
        return Symptoms(findings, is_intact, self._size)

    def _lost_without_proof(self, why: str) -> None:
        """Note all rows as lost: the content is not the manifest's, and nothing says which of it might be."""
        if self._is_foreign():
            return
        kind: Kind = "truncated" if self._size < self._entry.size_bytes else "flipped bytes"
        self.problems.add_all_lost(kind, f"its content is not what the manifest says, and {why}")

    def _is_foreign(self) -> bool:
        """True if the file says that it belongs elsewhere; then all rows of this place are noted as lost."""
        stored = open_by_itself(self._path)
        if stored is None:
            return False
        with stored:
            marks = self.problems.foreign_marks(stored.attributes)
        if marks:
            self.problems.add_all_lost("foreign shard", f"it is a shard of another place: {marks}")
        return bool(marks)

    def _judge_other_version(self, info: ShardInfo, symptoms: Symptoms) -> None:
        """Judge a shard whose sidecar is not the manifest's; both may be of another version."""
        if not symptoms.is_healthy(info):
            self._lost_without_proof("its sidecar is not the manifest's")
            return
        if self._is_foreign():
            return
        with StoredShard.by_sidecar(self._path, info) as stored:
            rows, ids = (stored.read(name, 0, info.num_rows) for name in ("row", "sample_id"))
        differences = self.problems.compare_ids(rows, ids)
        for kind, message, concerned in differences:
            if kind == "count mismatch":
                self.problems.lost = concerned
            self._add(kind, message, rows=concerned)
        if not differences:
            message = "it and its sidecar are another version than the manifest's"
            self.problems.add_all_lost("foreign shard", message)

    def _check_inside(self, info: ShardInfo, symptoms: Symptoms) -> None:
        """Check that a shard in which every byte is as it was written is the one that belongs here."""
        manifest = {column.path: (column.dtype, column.shape) for column in self._data.columns}
        for name, message in schema_differences(manifest, schema_of(info.datasets)):
            self._add("wrong schema", message, dataset=name)
        entry = self._entry
        if (info.num_rows, info.lo, info.hi) != (entry.num_rows, entry.lo, entry.hi):
            message = "its sidecar and the manifest differ in rows"
            self._add("count mismatch", message, file=info_name(info.shard))
        self._check_headers(info)
        if self._quick:
            return
        with StoredShard.by_sidecar(self._path, info) as stored:
            rows, ids = (stored.read(name, 0, info.num_rows) for name in ("row", "sample_id"))
            for kind, message, concerned in self.problems.compare_ids(rows, ids):
                self._add(kind, message, rows=concerned)
            for name, found in symptoms.findings.items():
                if found.broken:
                    self._out_of_range(info, stored, name, np.unique(np.concatenate(found.broken)))

    def _check_headers(self, info: ShardInfo) -> None:
        """Check what HDF5 reads in the file; this is safe, because its headers are as they were written."""
        import h5py

        try:
            with h5py.File(self._path, "r", locking=False) as file:
                attributes = {name: plain(value) for name, value in file.attrs.items()}
                own = {d.name: _schema_in(file, d.name) for d in info.datasets if d.name in file}
                broken = [d for d in info.datasets if num_not_finite(d) and _promises_finite(file, d)]
        except (OSError, KeyError, RuntimeError, ValueError) as e:
            self._add("wrong schema", f"HDF5 cannot read it: {e}")
            return
        if wrong := SHARD_FORMAT.mismatch(attributes):
            self._add("wrong schema", wrong)
        marks = self.problems.foreign_marks(attributes)
        if marks:
            self._add("foreign shard", f"it is a shard of another place with the same content: {marks}")
        for name, message in schema_differences(schema_of(info.datasets), own):
            self._add("wrong schema", message, dataset=name)
        for dataset in broken:
            message = f"{num_not_finite(dataset)} values are not finite, and it promises that all are"
            self._add("out of range", message, dataset=dataset.name)

    def _out_of_range(self, info: ShardInfo, stored: StoredShard, name: str, places: Array) -> None:
        if name.endswith("/values"):
            places = places_of_items(places, stored.offsets(name.removesuffix("/values")), info.num_rows)
        expected = self.problems.expected
        rows = expected[places[places < len(expected)]]
        message = f"values contradict the recorded statistics in {in_rows(rows)}"
        self._add("out of range", message, dataset=name, rows=rows)


def num_not_finite(dataset: DatasetInfo) -> int:
    """The number of values that the recorded statistics leave out."""
    if dataset.statistics is None or dataset.name.endswith("/offsets"):
        return 0
    return int(np.prod(dataset.shape, dtype=np.int64)) - sum(dataset.statistics.count)


def _promises_finite(file: Any, dataset: DatasetInfo) -> bool:
    """True if the attributes promise finite values; those of a ragged field are on its group."""
    name = dataset.name.rpartition("/")[0] if dataset.ragged else dataset.name
    return bool(file[name].attrs.get("finite"))


def _schema_in(file: Any, name: str) -> tuple[str, tuple[int, ...]]:
    """dtype and shape of one row."""
    import h5py

    found = h5py.h5d.open(file.id, name.encode())
    return TEXT_DTYPE if found.dtype.kind == "O" else found.dtype.str, tuple(found.shape[1:])
