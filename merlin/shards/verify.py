"""Re-read a data set and prove that it is what its manifest says.

Every byte of every shard is covered by exactly one digest, so a flipped byte is found wherever it is, and
named with its data set and rows where it lies in values. Then the rows are reconciled with the plan's:
planned = ok + failed + skipped + missing, each exactly once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from merlin.errors import ShardError
from merlin.shards import gather
from merlin.shards.columns import skeleton_digest
from merlin.shards.digest import TEXT_BLOCK_ROWS, digest_bytes, digest_text
from merlin.shards.manifest_file import Counts, DataSet, ShardEntry, SourceInfo, read_manifest
from merlin.shards.rows import format_ranges, to_ranges
from merlin.shards.shard_info import DatasetInfo, ShardInfo, info_name, read_info

Kind = Literal["missing file", "truncated", "damaged", "schema", "rows", "counts"]
Progress = Callable[[int, int], None]  # bytes done, bytes in all

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding. `rows` are row numbers of the data set, empty if they cannot be told."""

    kind: Kind
    file: str
    message: str
    dataset: str = ""  # "fields/image"
    rows: tuple[tuple[int, int], ...] = ()
    samples: tuple[tuple[int, int], ...] = ()  # the ids of those rows' samples

    def render(self) -> str:
        where = f"{self.file}: {self.dataset}" if self.dataset else self.file
        what = f" (samples {format_ranges(list(self.samples))})" if self.samples else ""
        return f"{where}: {self.kind}: {self.message}{what}"


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` found."""

    path: Path
    counts: Counts
    num_shards: int
    num_rows: int
    size_bytes: int
    problems: tuple[Problem, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Intact and reconciled; the command exits with 0, else with 1."""
        return not self.problems


def verify(path: str | os.PathLike[str], progress: Progress | None = None) -> Report:
    """Re-read everything, in as many threads as there are cores.

    Raises NotADataSetError if there is no manifest, ShardError if the manifest itself cannot be trusted.
    """
    started = time.monotonic()
    data = read_manifest(Path(path))
    problems = [*_check_counts(data), *_check_virtual(data)]
    done = 0
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="verify") as pool:
        jobs = [(entry, pool.submit(_check_shard, data, entry)) for entry in data.shards]
        for entry, job in jobs:
            problems.extend(job.result())
            done += entry.size_bytes
            if progress is not None:
                progress(done, data.size_bytes)
    return Report(
        path=data.directory,
        counts=data.counts,
        num_shards=len(data.shards),
        num_rows=data.num_rows,
        size_bytes=data.size_bytes,
        problems=tuple(problems),
        seconds=time.monotonic() - started,
    )


def _check_counts(data: DataSet) -> Iterator[Problem]:
    """The manifest agrees with itself: counts, ranges, and the rows of its shards."""
    name = "manifest.json"
    for counts, of in [(data.counts, "the data set"), *((s.counts, f"'{s.id}'") for s in data.sources)]:
        if not counts.reconciled:
            yield Problem("counts", name, f"the counts of {of} do not add up: {counts}")
    for source in data.sources:
        for fate in ("failed", "skipped", "missing"):
            listed = sum(b - a for a, b in getattr(source, fate))
            counted = getattr(source.counts, fate)
            if listed != counted:
                yield Problem(
                    "counts", name, f"'{source.id}' counts {counted} {fate} tasks and lists {listed}"
                )
    totals = {key: sum(getattr(s.counts, key) for s in data.sources) for key in ("planned", "ok")}
    if (totals["planned"], totals["ok"]) != (data.counts.planned, data.counts.ok):
        yield Problem("counts", name, f"the sources add up to {totals}, the data set to {data.counts}")
    if data.num_rows != data.counts.ok:
        yield Problem(
            "counts", name, f"{data.counts.ok} tasks ended ok, the shards hold {data.num_rows} rows"
        )
    borders = [(shard.lo, shard.hi) for shard in data.shards]
    expected_lo = [0, *(hi for _, hi in borders[:-1])]
    if [lo for lo, _ in borders] != expected_lo[: len(borders)] or (
        borders and borders[-1][1] != totals["planned"]
    ):
        yield Problem(
            "counts", name, "the row ranges of the shards do not follow each other up to the last row"
        )


def _check_virtual(data: DataSet) -> Iterator[Problem]:
    entry = data.virtual
    path = data.directory / entry.file
    if not path.is_file():
        yield Problem("missing file", entry.file, "the file is not there")
    elif path.stat().st_size != entry.size_bytes:
        yield Problem(
            "truncated", entry.file, f"expected {entry.size_bytes} bytes, found {path.stat().st_size}"
        )
    elif digest_bytes(path.read_bytes()) != entry.digest:
        yield Problem("damaged", entry.file, "its digest differs")


def _check_shard(data: DataSet, entry: ShardEntry) -> list[Problem]:
    path = data.directory / entry.file
    expected = _expected_rows(data, entry)
    problems: list[Problem] = []
    if len(expected) != entry.num_rows:
        message = f"{len(expected)} of its tasks ended ok, the manifest gives it {entry.num_rows} rows"
        problems.append(Problem("counts", entry.file, message))
    if not path.is_file():
        rows = to_ranges(expected)
        lost = Problem("missing file", entry.file, f"the file is not there; lost rows {format_ranges(rows)}")
        return [*problems, _with_rows(data, lost, expected)]
    info, sidecar_problems = _sidecar(data, entry)
    problems += sidecar_problems
    if info is None:
        return problems + list(_check_without_sidecar(path, entry))
    size = path.stat().st_size
    if size != entry.size_bytes:
        problems.append(_size_problem(data, entry, info, size, expected))
    try:
        damage = list(_damage(data, entry, info, path, expected))
    except OSError as e:
        damage = [Problem("damaged", entry.file, f"cannot be read: {e}")]
    problems += damage
    if not damage and size == entry.size_bytes:
        problems += _check_schema(data, entry, info)
        problems += _check_rows(data, entry, path, expected)
    return problems


def _sidecar(data: DataSet, entry: ShardEntry) -> tuple[ShardInfo | None, list[Problem]]:
    """The shard's description, if it is the one the manifest was made from."""
    name = info_name(entry.shard)
    path = data.directory / name
    if not path.is_file():
        return None, [Problem("missing file", name, "the file is not there")]
    try:
        if digest_bytes(path.read_bytes()) != entry.info_digest:
            return None, [Problem("damaged", name, "its digest differs from the manifest's")]
        return read_info(path), []
    except (ShardError, OSError) as e:
        return None, [Problem("damaged", name, str(e))]


def _size_problem(data: DataSet, entry: ShardEntry, info: ShardInfo, size: int, expected: Array) -> Problem:
    message = f"expected {entry.size_bytes} bytes, found {size}"
    if size > entry.size_bytes:
        return Problem("damaged", entry.file, message)
    cut = [(e.lo, e.hi) for d in info.datasets for e in d.extents if e.offset + e.nbytes > size]
    problem = Problem("truncated", entry.file, message)
    return _with_rows(data, problem, _local_rows(cut, expected)) if cut else problem


def _damage(
    data: DataSet, entry: ShardEntry, info: ShardInfo, path: Path, expected: Array
) -> Iterator[Problem]:
    """Compare the digest of every byte: values by extent, everything else by the skeleton's."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for dataset in info.datasets:
            bad = [
                (e.lo, e.hi)
                for e in dataset.extents
                if digest_bytes(os.pread(descriptor, e.nbytes, e.offset)) != e.digest
            ]
            if bad:
                rows = _local_rows(bad, expected)
                message = f"stored bytes differ in rows {format_ranges(to_ranges(rows))}"
                yield _with_rows(data, Problem("damaged", entry.file, message, dataset.name), rows)
    finally:
        os.close(descriptor)
    if skeleton_digest(path, info.datasets) != info.skeleton:
        named = _damaged_text(path, info, expected)
        for dataset_name, rows in named:
            message = f"text differs in rows {format_ranges(to_ranges(rows))}"
            yield _with_rows(data, Problem("damaged", entry.file, message, dataset_name), rows)
        if not named:
            yield Problem("damaged", entry.file, "bytes differ in its headers, attributes or gaps")


def _damaged_text(path: Path, info: ShardInfo, expected: Array) -> list[tuple[str, Array]]:
    """Which text columns read differently; nothing if the file is too damaged to tell."""
    import h5py

    found = []
    try:
        with h5py.File(path, "r", locking=False) as file:
            for dataset in info.datasets:
                if dataset.dtype == "text":
                    bad = _bad_text_blocks(file[dataset.name], dataset)
                    if bad:
                        found.append((dataset.name, _local_rows(bad, expected)))
    except (OSError, KeyError, RuntimeError, ValueError):
        return []
    return found


def _bad_text_blocks(stored: Any, dataset: DatasetInfo) -> list[tuple[int, int]]:
    num_rows, bad = dataset.shape[0], []
    for number, digest in enumerate(dataset.blocks):
        lo = number * TEXT_BLOCK_ROWS
        hi = min(lo + TEXT_BLOCK_ROWS, num_rows)
        values = [value.decode("utf-8", "surrogateescape") for value in stored[lo:hi]]
        if digest_text(values) != digest:
            bad.append((lo, hi))
    return bad


def _check_without_sidecar(path: Path, entry: ShardEntry) -> Iterator[Problem]:
    """The little that can be told of a shard whose description is lost."""
    size = path.stat().st_size
    if size != entry.size_bytes:
        kind: Kind = "truncated" if size < entry.size_bytes else "damaged"
        yield Problem(kind, entry.file, f"expected {entry.size_bytes} bytes, found {size}")
    else:
        yield Problem(
            "damaged", entry.file, "its digests are in the lost description, so it cannot be verified"
        )


def _check_schema(data: DataSet, entry: ShardEntry, info: ShardInfo) -> Iterator[Problem]:
    if (info.content_digest, info.file_digest) != (entry.content_digest, entry.file_digest):
        yield Problem("damaged", entry.file, "it is another shard than the one the manifest was made from")
    found = {d.name: (d.dtype, d.shape[1:]) for d in info.datasets}
    wanted = {column.path: (column.dtype, column.shape) for column in data.columns}
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            message = f"expected {wanted.get(name, 'nothing')}, found {found.get(name, 'nothing')}"
            yield Problem("schema", entry.file, message, name)


def _check_rows(data: DataSet, entry: ShardEntry, path: Path, expected: Array) -> Iterator[Problem]:
    """The shard holds each row whose task ended ok once, no other, and the sample ids fit."""
    import h5py

    try:
        with h5py.File(path, "r", locking=False) as file:
            if (file.attrs["format"], int(file.attrs["version"])) != (gather.FORMAT, gather.VERSION):
                yield Problem("schema", entry.file, f"not a {gather.FORMAT} of version {gather.VERSION}")
                return
            rows, ids = file["row"][()], file["sample_id"][()]
    except (OSError, KeyError, RuntimeError) as e:
        yield Problem("damaged", entry.file, f"cannot be opened: {e}")
        return
    unique, times = np.unique(rows, return_counts=True)
    for what, numbers in (
        ("rows that are in it more than once", unique[times > 1]),
        ("rows that do not belong in it", np.setdiff1d(unique, expected)),
        ("rows that it should hold and does not", np.setdiff1d(expected, unique)),
        ("rows with another sample's id", rows[ids != _sample_ids(data, rows)]),
    ):
        if len(numbers):
            listed = format_ranges(to_ranges(np.unique(numbers)))
            yield _with_rows(data, Problem("rows", entry.file, f"{what}: {listed}"), numbers)


def _expected_rows(data: DataSet, entry: ShardEntry) -> Array:
    """Rows of the shard that are neither failed, skipped nor missing."""
    mask = np.ones(entry.hi - entry.lo, dtype=bool)
    for source in data.sources:
        for a, b in _absent(source):
            mask[max(a, entry.lo) - entry.lo : max(min(b, entry.hi) - entry.lo, 0)] = False
    return entry.lo + np.flatnonzero(mask)


def _absent(source: SourceInfo) -> Iterator[tuple[int, int]]:
    for a, b in (*source.failed, *source.skipped, *source.missing):
        yield source.first_row + a, source.first_row + b


def _local_rows(ranges: list[tuple[int, int]], expected: Array) -> Array:
    """Row numbers of positions in the file."""
    positions = np.unique(np.concatenate([np.arange(a, b) for a, b in ranges]))
    return np.asarray(expected[positions[positions < len(expected)]])


def _sample_ids(data: DataSet, rows: Array) -> Array:
    per_source = data.sources[0].num_tasks if data.sources else 1
    return np.asarray(rows % per_source if data.per_sample else rows)


def _with_rows(data: DataSet, problem: Problem, rows: Array) -> Problem:
    rows = np.unique(rows)
    samples = np.unique(_sample_ids(data, rows))
    return Problem(
        problem.kind,
        problem.file,
        problem.message,
        problem.dataset,
        tuple(to_ranges(rows)),
        tuple(to_ranges(samples)),
    )
