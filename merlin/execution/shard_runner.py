"""Steps that write data sets: a task is a shard, or the manifest of all shards."""

from __future__ import annotations

import time
from collections.abc import Callable

from merlin.errors import ShardError
from merlin.execution.journal import ChunkJournal
from merlin.execution.waiting import Waiter
from merlin.execution.walltime import Walltime
from merlin.ledger.records import Failure
from merlin.plan.plan import StepInstance, StepKind
from merlin.plan.tasks import Chunk, Outcome
from merlin.workspace.directory import Workspace


class ShardRunner:
    """Writes shards and manifests in the worker itself."""

    def __init__(self, workspace: Workspace, walltime: Walltime, fence: Callable[[], None] | None) -> None:
        self._workspace, self._walltime, self._fence = workspace, walltime, fence

    def run(self, instance: StepInstance, chunk: Chunk, journal: ChunkJournal, waiter: Waiter) -> None:
        """Write one shard after the other, as long as there is time for the next."""
        for task in chunk.task_ids():
            if waiter.stopped or not self._walltime.has_time_for(chunk.need_s):
                return
            started, clock = time.time(), time.perf_counter()
            if self._fence is not None:
                self._fence()
            try:
                self._write_shard(instance, chunk, task)
            except ShardError as error:
                failure = Failure(task=task, cause=str(error), exit_code=1)
                journal.fail(failure, started=started, seconds=time.perf_counter() - clock)
            else:
                journal.end(task, Outcome.OK, started=started, seconds=time.perf_counter() - clock)
            journal.flush()

    def _write_shard(self, instance: StepInstance, chunk: Chunk, task: int) -> None:
        if instance.kind is StepKind.MANIFEST:
            from merlin.shards.writing.manifest import write_manifest

            write_manifest(self._workspace, instance)
        else:
            from merlin.shards.format.rows import row_map
            from merlin.shards.writing.cleanup import clean_after_shard
            from merlin.shards.writing.gather import write_shard

            shard, absent = row_map(self._workspace, instance).shard_task(task, chunk.absent_rows)
            info = write_shard(self._workspace, instance, shard, absent)
            clean_after_shard(self._workspace, instance, info)
