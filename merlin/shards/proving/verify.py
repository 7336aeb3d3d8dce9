"""Prove that a data set is what its manifest says, or report what is wrong with it and which samples that concerns.

Every byte of every file is covered by exactly one digest: the manifest's own, that of a sidecar, of ``ensemble.h5``, of
a block of values, or of what lies between the values of a shard. Damaged blocks are narrowed down to rows by the check
values of the sidecars. Then the rows are reconciled with the plan's: planned = ok + failed + filtered + skipped +
missing, each exactly once; and the values with the ranges of the recorded statistics.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from merlin.base.ranges import Ranges, to_ranges, total
from merlin.errors import NotADataSetError, ShardError
from merlin.shards.format.counts import Counts
from merlin.shards.format.digest import digest_bytes
from merlin.shards.format.manifest_file import (
    FORMAT,
    NAME,
    VIRTUAL_NAME,
    DataSet,
    manifest_path,
    read_manifest,
    unfinished,
)
from merlin.shards.proving.damage import DataSetProblem, lost_rows, problem, samples_by_kind
from merlin.shards.proving.expected import ABSENT, sample_ids
from merlin.shards.proving.origin import find_aggregate, has_manifest_outcome, promised
from merlin.shards.proving.shard_check import check_shard

Progress = Callable[[int, int], None]  # bytes done, bytes in all


class VerifyReport(Struct, frozen=True):
    """What `verify` found."""

    path: Path
    is_quick: bool
    problems: tuple[DataSetProblem, ...]
    seconds: float
    counts: Counts | None = None  # this and what follows: only if the shards could be checked
    num_shards: int = 0
    num_rows: int = 0
    size_bytes: int = 0  # of all shards
    num_read: int = 0  # bytes of them that were read
    content_digest: str = ""
    samples: Ranges = ()  # ids of the samples that have to run again

    @property
    def ok(self) -> bool:
        """True if the data set is intact and reconciled; the command then exits with 0, else with 1."""
        return not self.problems

    @property
    def has_manifest(self) -> bool:
        """True if there is a manifest that can be read."""
        lost = ("missing file", "damaged manifest")
        return not any(p.file == NAME and p.kind in lost for p in self.problems)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-able data, for programs; ranges are [lo, hi)."""
        return {
            "path": str(self.path),
            "ok": self.ok,
            "quick": self.is_quick,
            "shards_checked": self.counts is not None,
            "counts": self.counts,
            "num_shards": self.num_shards,
            "num_rows": self.num_rows,
            "size_bytes": self.size_bytes,
            "bytes_read": self.num_read,
            "seconds": self.seconds,
            "content_digest": self.content_digest,
            "damage": samples_by_kind(self.problems),
            "lost_samples": self.samples,
            "problems": self.problems,
        }


def verify(
    path: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    quick: bool = False,
    workers: int | None = None,
) -> VerifyReport:
    """Check a data set in as many threads as there are cores, or `workers`.

    `quick` reads no values: files, sizes, sidecars, headers, attributes, texts and counts. Memory: a block and a
    compressed chunk per thread, and the sidecars of a few shards.

    Without a readable manifest the shards are compared with what their study says, if they lie in its workspace.

    Raises:
        NotADataSetError: there is no manifest and nothing shows that there was one; or it is of a version that is not
            known here.
    """
    started = time.monotonic()
    lost: DataSetProblem | None = None
    directory = manifest_path(Path(path)).parent
    try:
        data = read_manifest(directory)
    except ShardError as e:
        lost = _manifest_problem(directory, e)
        known = promised(directory)
        if known is None:
            return VerifyReport(directory, quick, (lost,), time.monotonic() - started)
        data = known
    beside = [lost] if lost else [*_check_counts(data), *_check_virtual(data)]
    counter = _Counter(data.size_bytes, progress)
    problems = (*beside, *_check_shards(data, counter, quick, workers))
    return VerifyReport(
        path=data.directory,
        is_quick=quick,
        problems=problems,
        seconds=time.monotonic() - started,
        counts=data.counts,
        num_shards=len(data.shards),
        num_rows=data.num_rows,
        size_bytes=data.size_bytes,
        num_read=counter.done,
        content_digest="" if lost else data.content_digest,
        samples=to_ranges(np.unique(sample_ids(data, lost_rows(problems)))),
    )


def _manifest_problem(directory: Path, error: ShardError) -> DataSetProblem:
    """The finding about a lost or damaged manifest. Raises NotADataSetError where that is not certain."""
    path = directory / NAME
    has_sidecars = any(directory.glob("shard_*.json"))
    if not path.is_file():
        if not has_sidecars or not _was_finished(directory):
            raise error
        return DataSetProblem(
            "missing file", NAME, "the manifest is not there, although the data set was finished"
        )
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
        # what a damaged manifest does not say counts as ours
        is_other = not FORMAT.is_of({**FORMAT.head(), **head})
    except (OSError, ValueError, TypeError):
        is_other = False
    if is_other or not has_sidecars:
        raise NotADataSetError(str(error)) from error
    return DataSetProblem("damaged manifest", NAME, str(error).removeprefix(f"{path}: "))


def _was_finished(directory: Path) -> bool:
    """True if the study of a data set without a manifest says that it had one, or if there is no study.

    An import or a collect that was interrupted has not finished.
    """
    if unfinished(directory):
        return False
    found = find_aggregate(directory)
    return found is None or has_manifest_outcome(*found)


class _Counter:
    """Bytes that were read, by all threads."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done = 0
        self._total, self._progress = total, progress
        self._lock = threading.Lock()

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self.done += num_bytes
            if self._progress is not None:
                self._progress(min(self.done, self._total), self._total)


def _check_counts(data: DataSet) -> Iterator[DataSetProblem]:
    """Check that the manifest agrees with itself: counts, ranges, and the rows of its shards."""
    for counts, of in [(data.counts, "the data set"), *((s.counts, f"'{s.id}'") for s in data.sources)]:
        if not counts.reconciled:
            yield problem(data, "count mismatch", NAME, f"the counts of {of} do not add up: {counts}")
    for source in data.sources:
        for outcome in ABSENT:
            listed = total(getattr(source, outcome))
            counted = getattr(source.counts, outcome)
            if listed != counted:
                message = f"'{source.id}' counts {counted} {outcome} tasks and lists {listed}"
                yield problem(data, "count mismatch", NAME, message)
    totals = {key: sum(getattr(s.counts, key) for s in data.sources) for key in ("planned", "ok")}
    if (totals["planned"], totals["ok"]) != (data.counts.planned, data.counts.ok):
        message = f"the sources add up to {totals}, the data set to {data.counts}"
        yield problem(data, "count mismatch", NAME, message)
    if data.num_rows != data.counts.ok:
        message = f"{data.counts.ok} samples are counted as ok, the shards hold {data.num_rows} rows"
        yield problem(data, "count mismatch", NAME, message)
    borders = [0, *(hi for shard in data.shards for hi in (shard.lo, shard.hi))]
    if borders[::2] != [*borders[1::2], totals["planned"]]:
        message = "the row ranges of the shards do not follow each other up to the last row"
        yield problem(data, "count mismatch", NAME, message)


def _check_virtual(data: DataSet) -> Iterator[DataSetProblem]:
    """Check the virtual data set, and the name under which people find it."""
    entry = data.virtual
    for name in dict.fromkeys((entry.file, VIRTUAL_NAME)):
        path = data.directory / name
        if not path.is_file():
            yield problem(data, "missing file", name, "the file is not there")
        elif digest_bytes(path.read_bytes()) not in {
            entry.digest,
            entry.before if name != entry.file else "",
        }:
            size = path.stat().st_size
            other = "" if size == entry.size_bytes else f": expected {entry.size_bytes} bytes, found {size}"
            yield problem(data, "damaged ensemble", name, f"its digest differs{other}")


def _check_shards(data: DataSet, counter: _Counter, quick: bool, workers: int | None) -> list[DataSetProblem]:
    """Check each shard in one thread, which leaves the reading of values to as many others."""
    num = workers or len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(num, "verify-values") as scanners, ThreadPoolExecutor(num, "verify") as checkers:
        check = partial(check_shard, data, scanners=scanners, tick=counter.add, quick=quick)
        return [problem for found in checkers.map(check, data.shards) for problem in found]
