"""Everything that is checked about one shard: the file, its sidecar, its headers, its values."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from merlin.errors import ShardError
from merlin.shards.format.digest import TEXT_DTYPE, digest_bytes
from merlin.shards.format.manifest_file import DataSet, ShardEntry
from merlin.shards.format.shard_info import (
    SHARD_FORMAT,
    SHARD_VERSION,
    DatasetInfo,
    ShardInfo,
    info_name,
    read_info,
)
from merlin.shards.proving.bounds import bounds_of
from merlin.shards.proving.compare import (
    compare_ids,
    foreign_marks,
    in_rows,
    places_of_items,
    schema_differences,
)
from merlin.shards.proving.damage import NO_ROWS, Kind, Problem, problem
from merlin.shards.proving.diagnose import Diagnosis, Symptoms, open_by_itself
from merlin.shards.proving.expected import expected_rows
from merlin.shards.proving.probe import plain
from merlin.shards.proving.reread import content_digest
from merlin.shards.proving.scan import Findings, Job, Tick, jobs_of
from merlin.shards.proving.stored import StoredShard
from merlin.shards.writing.columns import skeleton_digest

Array = np.ndarray[Any, Any]
Work = Callable[[], Any]


class ShardCheck:
    """One shard of a data set: `begin`, then its work in any threads, then `finish` with what that returned."""

    def __init__(self, data: DataSet, entry: ShardEntry, tick: Tick, *, quick: bool) -> None:
        self._data, self._entry, self._tick, self._quick = data, entry, tick, quick
        self._path = data.directory / entry.file
        self._problems: list[Problem] = []
        self._info: ShardInfo | None = None
        self._is_ours = False  # the sidecar describes the content that the manifest names
        self._jobs: list[Job] = []
        self._descriptor = -1
        self._size = 0

    def _add(
        self,
        kind: Kind,
        message: str,
        *,
        file: str = "",
        dataset: str = "",
        rows: Array = NO_ROWS,
        lost: bool = False,
    ) -> None:
        found = problem(
            self._data,
            kind,
            file or self._entry.file,
            message,
            dataset=dataset,
            rows=rows,
            lost=rows if lost else NO_ROWS,
        )
        self._problems.append(found)

    # ------------------------------------------------------------------ begin

    def begin(self) -> list[Work]:
        """Look at the outside; returns what is to be read. May be called in any thread."""
        self._expected = expected_rows(self._data, self._entry.lo, self._entry.hi)
        if len(self._expected) != self._entry.num_rows:
            self._add(
                "count mismatch",
                f"{len(self._expected)} of its tasks ended ok, the manifest gives it {self._entry.num_rows} rows",
            )
        self._read_sidecar()
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._size = os.fstat(self._descriptor).st_size
        except FileNotFoundError:
            self._add("missing file", "the file is not there", rows=self._expected, lost=True)
            return []
        except OSError as e:
            message = f"cannot be opened: {e.strerror}"
            self._add("missing file", message, rows=self._expected, lost=True)
            return []
        if self._info is None:
            return [] if self._quick else [self._reread]
        jobs = [] if self._quick else self._all_jobs(self._info)
        return [self._skeleton, *(self._scan(job) for job in jobs)]

    def _all_jobs(self, info: ShardInfo) -> list[Job]:
        fields = {field.path: field for field in self._data.fields}
        self._jobs = list(jobs_of(info, lambda d: bounds_of(d, fields.get(d.name.removesuffix("/values")))))
        return self._jobs

    def _read_sidecar(self) -> None:
        name, entry = info_name(self._entry.shard), self._entry
        path = self._data.directory / name
        try:
            content = path.read_bytes()
            info = read_info(path)
        except FileNotFoundError:
            self._add("missing file", "the sidecar is not there", file=name)
            return
        except (OSError, ShardError) as e:
            self._add("damaged sidecar", str(e), file=name)
            return
        self._info = info
        self._is_ours = info.content_digest == entry.content_digest
        if digest_bytes(content) != entry.info_digest:
            what = "though of the same content" if self._is_ours else "and of another content"
            self._add(
                "damaged sidecar", f"it is not the one that the manifest was made from, {what}", file=name
            )

    def _scan(self, job: Job) -> Work:
        return lambda: job.run(self._descriptor, self._tick)

    def _skeleton(self) -> bool:
        """Whether every byte outside of the values is as it was written."""
        assert self._info is not None
        digest = skeleton_digest(self._path, self._info.datasets)
        if not self._quick:
            self._tick(max(0, self._size - sum(e.nbytes for d in self._info.datasets for e in d.extents)))
        return digest == self._info.skeleton

    def _reread(self) -> str:
        """The content digest of a shard without a sidecar; "" if it cannot be read."""
        try:
            with StoredShard.by_itself(self._path) as stored:
                found = content_digest(stored)
        except ShardError:
            found = ""
        self._tick(self._size)
        return found

    # ----------------------------------------------------------------- finish

    def finish(self, results: Sequence[Any]) -> list[Problem]:
        """Draw the conclusions."""
        try:
            if self._descriptor >= 0:
                self._conclude(results)
            return self._problems
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the file; `finish` does it, too."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def _conclude(self, results: Sequence[Any]) -> None:
        info = self._info
        if info is None:
            if not self._quick and results[0] != self._entry.content_digest:
                self._lost_without_proof("without its sidecar it cannot be told which rows are damaged")
            return
        results = list(results)
        if self._quick and not Symptoms({}, results[0], self._size).is_healthy(info):
            results += [job.run(self._descriptor, self._tick) for job in self._all_jobs(info)]
        findings: dict[str, Findings] = {}
        for job, found in zip(self._jobs, results[1:], strict=True):
            findings.setdefault(job.dataset.name, Findings()).add(found)
        symptoms = Symptoms(findings, results[0], self._size)
        if not self._is_ours:
            self._judge_other_version(info, symptoms)
        elif symptoms.is_healthy(info):
            self._check_inside(info, findings)
        else:
            with Diagnosis(self._data, self._entry, info, symptoms) as diagnosis:
                self._problems += diagnosis.problems()

    def _lost_without_proof(self, why: str) -> None:
        """The content is not that of the manifest, and nothing says which of it might be."""
        if self._is_foreign():
            return
        kind: Kind = "truncated" if self._size < self._entry.size_bytes else "flipped bytes"
        message = f"its content is not what the manifest says, and {why}"
        self._add(kind, message, rows=self._expected, lost=True)

    def _is_foreign(self) -> bool:
        """Whether the file says that it belongs elsewhere; then all rows of this place are lost."""
        stored = open_by_itself(self._path)
        if stored is None:
            return False
        with stored:
            marks = foreign_marks(self._data, self._entry, stored.attributes)
        if marks:
            self._add(
                "foreign shard", f"it is a shard of another place: {marks}", rows=self._expected, lost=True
            )
        return bool(marks)

    def _judge_other_version(self, info: ShardInfo, symptoms: Symptoms) -> None:
        """The sidecar is of another content than the manifest; perhaps the shard is, too, and fits the sidecar."""
        if not symptoms.is_healthy(info):
            self._lost_without_proof("its sidecar is not the manifest's")
            return
        if self._is_foreign():
            return
        with StoredShard.by_sidecar(self._path, info) as stored:
            rows, ids = (stored.read(name, 0, info.num_rows) for name in ("row", "sample_id"))
        told = compare_ids(self._data, self._expected, rows, ids)
        for kind, message, concerned in told:
            self._add(kind, message, rows=concerned, lost=kind == "count mismatch")
        if not told:
            message = "it and its sidecar are another version than the manifest's"
            self._add("foreign shard", message, rows=self._expected, lost=True)

    def _check_inside(self, info: ShardInfo, findings: dict[str, Findings]) -> None:
        """Every byte is as it was written; now whether that is what belongs here."""
        self._check_schema(info)
        self._check_headers(info)
        if self._quick:
            return
        with StoredShard.by_sidecar(self._path, info) as stored:
            rows = stored.read("row", 0, info.num_rows)
            ids = stored.read("sample_id", 0, info.num_rows)
            for kind, message, concerned in compare_ids(self._data, self._expected, rows, ids):
                self._add(kind, message, rows=concerned)
            for name, found in findings.items():
                if found.broken:
                    self._out_of_range(info, stored, name, np.unique(np.concatenate(found.broken)))

    def _check_schema(self, info: ShardInfo) -> None:
        """The sidecar agrees with the manifest about the columns."""
        found = {d.name: (d.dtype, d.shape[1:]) for d in info.datasets}
        wanted = {column.path: (column.dtype, column.shape) for column in self._data.columns}
        for name in sorted(found.keys() | wanted.keys()):
            if found.get(name) != wanted.get(name):
                message = f"expected {wanted.get(name, 'nothing')}, found {found.get(name, 'nothing')}"
                self._add("wrong schema", message, dataset=name)
        if (info.num_rows, info.lo, info.hi) != (self._entry.num_rows, self._entry.lo, self._entry.hi):
            self._add(
                "count mismatch", "its sidecar and the manifest differ in rows", file=info_name(info.shard)
            )

    def _check_headers(self, info: ShardInfo) -> None:
        """What HDF5 makes of the file; its headers are as they were written, so asking it is safe."""
        import h5py

        try:
            with h5py.File(self._path, "r", locking=False) as file:
                attributes = {name: plain(value) for name, value in file.attrs.items()}
                own = {d.name: _schema_of(file, d.name) for d in info.datasets if d.name in file}
                broken = [d for d in info.datasets if num_not_finite(d) and _promises_finite(file, d)]
        except (OSError, KeyError, RuntimeError, ValueError) as e:
            self._add("wrong schema", f"HDF5 cannot read it: {e}")
            return
        kind = (attributes.get("format"), attributes.get("version"))
        if kind != (SHARD_FORMAT, SHARD_VERSION):
            message = f"expected {SHARD_FORMAT} version {SHARD_VERSION}, found {kind[0]} {kind[1]}"
            self._add("wrong schema", message)
        marks = foreign_marks(self._data, self._entry, attributes)
        if marks:
            self._add("foreign shard", f"it is a shard of another place with the same content: {marks}")
        for name, expected, other in schema_differences(info, own):
            self._add("wrong schema", f"expected {expected}, found {other}", dataset=name)
        for dataset in broken:
            message = f"{num_not_finite(dataset)} values are not finite, and it promises that all are"
            self._add("out of range", message, dataset=dataset.name)

    def _out_of_range(self, info: ShardInfo, stored: StoredShard, name: str, places: Array) -> None:
        if name.endswith("/values"):
            places = places_of_items(places, stored.offsets(name.removesuffix("/values")), info.num_rows)
        rows = self._expected[places[places < len(self._expected)]]
        message = f"values contradict the recorded statistics in {in_rows(rows)}"
        self._add("out of range", message, dataset=name, rows=rows)


def num_not_finite(dataset: DatasetInfo) -> int:
    """Values that the recorded statistics leave out."""
    if dataset.statistics is None or dataset.name.endswith("/offsets"):
        return 0
    return int(np.prod(dataset.shape, dtype=np.int64)) - sum(dataset.statistics.count)


def _promises_finite(file: Any, dataset: DatasetInfo) -> bool:
    """The attributes of a ragged field are on its group."""
    name = dataset.name.rpartition("/")[0] if dataset.ragged else dataset.name
    return bool(file[name].attrs.get("finite"))


def _schema_of(file: Any, name: str) -> tuple[str, tuple[int, ...]]:
    """dtype and shape of one row."""
    import h5py

    found = h5py.h5d.open(file.id, name.encode())
    return TEXT_DTYPE if found.dtype.kind == "O" else found.dtype.str, tuple(found.shape[1:])
