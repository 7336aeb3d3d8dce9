"""Tasks that do not run, because data sets of an earlier revision have their values: these are collected from there."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from merlin.execution.journal import FLUSH_TASKS, ChunkJournal
from merlin.execution.waiting import Waiter
from merlin.plan.tasks import Chunk
from merlin.workspace.directory import Workspace

if TYPE_CHECKING:
    from merlin.shards.recollecting.before import RowTaker
    from merlin.shards.writing.collect import CollectRequest


class TakenRows:
    """Takes rows from data sets that were put aside; the shard that was used last stays open."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._taker: RowTaker | None = None

    def taker(self, revision: int) -> Callable[[CollectRequest], dict[int, str]]:
        """A function that collects tasks from the data sets that a revision has put aside."""
        if self._taker is None:
            from merlin.shards.recollecting.before import RowTaker

            self._taker = RowTaker(self._workspace)
        return partial(self._taker.collect, revision=revision)

    def run(self, chunk: Chunk, journal: ChunkJournal, waiter: Waiter) -> None:
        """End the chunk's tasks ok, and let the journal collect them: that decides the outcomes."""
        ids = np.asarray(chunk.task_ids(), np.int64)
        for tasks in np.split(ids, range(FLUSH_TASKS, len(ids), FLUSH_TASKS)):
            if waiter.stopped:
                return
            journal.end_all(np.ones(len(tasks), bool), tasks, started=time.time(), seconds=0.0)
            journal.flush()

    def close(self) -> None:
        if self._taker is not None:
            self._taker.close()
