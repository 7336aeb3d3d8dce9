"""Remove the files of samples that a verified shard holds.

A sample's directory goes only if its row is in a shard that was read again and has every digest that its sidecar says,
and if no other step needs the files: those that do must have ended ok for that sample. The mark that the task has
finished goes first, so that half a directory is never taken for a finished task. Being killed at any moment does no
harm: the ledger knows that the task ended ok, the shard has its row, and the next pass removes what is left.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from merlin.base.field import TEXT_DTYPE
from merlin.base.ranges import distinct, mark
from merlin.errors import ShardError
from merlin.ledger.replay import Replay
from merlin.plan.cleanup import needed_by
from merlin.plan.layout import FINISHED
from merlin.plan.plan import StepInstance, StepKind
from merlin.plan.reopen import reopen_failed
from merlin.plan.tasks import Outcome
from merlin.shards.evidence.scan import jobs_of
from merlin.shards.format.digest import TEXT_BLOCK_ROWS, digest_text
from merlin.shards.format.rows import RowMap, aggregate_of, row_map
from merlin.shards.format.segments import Array
from merlin.shards.format.shard_info import (
    SHARD_FORMAT,
    ShardInfo,
    info_name,
    read_info,
    shard_name,
    skeleton_digest,
)
from merlin.shards.reading.column_reader import ColumnReader, OpenFiles
from merlin.workspace.directory import Workspace

# tasks (n,) of a source -> (n,) bool: nobody needs their files
Allowed = Callable[[StepInstance, Array], Array]


def clean_after_shard(workspace: Workspace, aggregate: StepInstance, info: ShardInfo) -> int:
    """Clean up behind a shard that was just written, unless other steps need the files; returns how many samples."""
    if not aggregate_of(aggregate).cleanup or any(_needing(workspace, aggregate).values()):
        return 0
    return _clean_shard(workspace, aggregate, info, lambda source, tasks: np.ones(len(tasks), dtype=bool))


def clean_data_set(workspace: Workspace, aggregate: StepInstance) -> int:
    """Clean up what is left once the data set is finished; returns how many samples."""
    if not aggregate_of(aggregate).cleanup:
        return 0
    allowed = _Permit(workspace, aggregate, Replay(workspace.ledger_dir, workspace.plan))
    rows = row_map(workspace, aggregate)
    directory = workspace.data_set_dir(aggregate)
    num = sum(
        _clean_shard(workspace, aggregate, read_info(directory / info_name(shard)), allowed)
        for shard in rows.shards
    )
    for source in rows.aggregate.sources:
        _remove_empty(workspace.instance_dir(workspace.instance(source)), workspace.layout.depth)
    return num


def _needing(workspace: Workspace, aggregate: StepInstance) -> dict[str, list[str]]:
    instances = {instance.id: instance for instance in workspace.plan.instances}
    return needed_by(instances, aggregate.id, str(workspace.path))


def _clean_shard(workspace: Workspace, aggregate: StepInstance, info: ShardInfo, allowed: Allowed) -> int:
    """Clean up behind a shard; raises ShardError, and removes nothing, if it is not what its sidecar says."""
    path = workspace.data_set_dir(aggregate) / shard_name(info.shard)
    held = ColumnReader(path, SHARD_FORMAT, OpenFiles()).rows
    going = list(_directories(workspace, row_map(workspace, aggregate), held, allowed))
    if going:
        prove(path, info)
        for directory in going:
            remove_task_files(directory)
    return len(going)


def _directories(workspace: Workspace, rows: RowMap, held: Array, allowed: Allowed) -> Iterator[str]:
    """The directories of the rows that are still there and may go."""
    which, tasks = rows.locate(held)
    for index in distinct(which).tolist():
        source = workspace.instance(rows.aggregate.sources[index])
        if source.kind is not StepKind.CMD:
            continue
        mine = tasks[which == index]
        for task in mine[allowed(source, mine)].tolist():
            directory = os.fspath(workspace.task_dir(source, task))
            if os.access(directory, os.F_OK):
                yield directory


class _Permit:
    """Which tasks' files nobody needs any more, by the outcomes in the ledger."""

    def __init__(self, workspace: Workspace, aggregate: StepInstance, replay: Replay) -> None:
        self._workspace = workspace
        self._replay = replay
        self._may_run_again = reopen_failed(workspace.plan, replay.outcomes)
        self._needing = _needing(workspace, aggregate)

    def __call__(self, source: StepInstance, tasks: Array) -> Array:
        allowed = np.ones(len(tasks), dtype=bool)
        for id in self._needing.get(source.id, []):
            allowed &= self._is_done(self._workspace.instance(id), source, tasks)
        return allowed

    def _is_done(self, other: StepInstance, source: StepInstance, tasks: Array) -> Array:
        """(n,) bool: whether another step no longer needs these tasks' files.

        It has ended ok with them, and `restart --failed` will not run it again.
        """
        ok = np.zeros(other.num_tasks, dtype=bool)
        mark(ok, self._replay.outcomes[other.id].ranges([Outcome.OK]), 0)
        if other.aggregate is not None:
            rows = row_map(self._workspace, other)
            at = rows.first_row(source.id) + tasks - other.aggregate.first_row
            return np.asarray(ok[at // other.aggregate.samples_per_shard])
        mark(ok, self._may_run_again.get(other.id, ()), 0, False)
        if any(edge.source == source.id and edge.kind == "same" for edge in other.edges):
            return np.asarray(ok[tasks])
        return np.full(len(tasks), bool(ok.all()))


# ----------------------------------------------------------------------- proof


def prove(path: Path, info: ShardInfo) -> None:
    """Read the whole shard again, from the disk where the system allows that, and compare every digest.

    Raises ShardError at the first that differs.
    """
    with path.open("rb", buffering=0) as file:
        descriptor = file.fileno()
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # what was written is flushed already
        size = os.fstat(descriptor).st_size
        if size != info.size_bytes:
            raise ShardError(f"{path}: expected {info.size_bytes} bytes, found {size}")
        for job in jobs_of(info, lambda dataset: None):
            if job.run(descriptor, lambda num_bytes: None).bad:
                raise _differs(path, f"'{job.dataset.name}' differs")
    if skeleton_digest(path, info.datasets) != info.skeleton:
        raise _differs(path, "its headers or texts differ")
    with h5py.File(path, "r", locking=False) as shard:
        for dataset in info.datasets:
            if dataset.dtype == TEXT_DTYPE and not _is_intact(shard[dataset.name].asstr(), dataset.blocks):
                raise _differs(path, f"'{dataset.name}' differs")


def _differs(path: Path, what: str) -> ShardError:
    return ShardError(f"{path}: {what} from what was written; files are kept")


def _is_intact(texts: Any, blocks: Sequence[str]) -> bool:
    starts = range(0, len(blocks) * TEXT_BLOCK_ROWS, TEXT_BLOCK_ROWS)
    return all(
        digest_text(texts[lo : lo + TEXT_BLOCK_ROWS]) == digest
        for lo, digest in zip(starts, blocks, strict=True)
    )


# --------------------------------------------------------------------- removal


def remove_task_files(directory: str) -> None:
    """Remove a task's directory; what cannot be removed stays, as clean-up is not worth a failure."""
    with suppress(OSError):
        os.unlink(f"{directory}/{FINISHED}")  # noqa: PTH108 - runs once per sample
    shutil.rmtree(directory, ignore_errors=True)


def _remove_empty(directory: Path, depth: int) -> None:
    """Remove the directories above the samples' that hold nothing any more."""
    if depth > 0:
        try:
            inner = [entry.path for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return
        for path in inner:
            _remove_empty(Path(path), depth - 1)
    with suppress(OSError):
        directory.rmdir()
