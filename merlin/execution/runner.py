"""Runs a chunk of a step, whatever its kind: writes its outcomes into the ledger and returns a result."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from msgspec.structs import replace

from merlin.base.files import file_error
from merlin.errors import ExecutionError, MerlinError
from merlin.execution.assignment import Assignment
from merlin.execution.functions import TAIL_CHARS, FunctionRunner
from merlin.execution.journal import ChunkJournal, EndedTask, OnProgress
from merlin.execution.shard_runner import ShardRunner
from merlin.execution.shell import machine_error, task_environment
from merlin.execution.shell_runner import ShellRunner
from merlin.execution.taken_rows import TakenRows
from merlin.execution.task_files import unmark_finished
from merlin.execution.waiting import Waiter
from merlin.execution.walltime import Walltime, Warnings
from merlin.ledger.records import Failure
from merlin.ledger.writer import LedgerWriter
from merlin.plan.durations import added
from merlin.plan.plan import StepInstance, StepKind
from merlin.plan.tasks import Chunk, ChunkResult, Outcome
from merlin.workspace.directory import Workspace

_NOT_TASK_ERRORS = (MerlinError, MemoryError, ImportError)  # running the tasks one by one would not help


class ChunkRunner:
    """Runs chunks of every kind of step, one at a time; a worker has one runner."""

    def __init__(
        self,
        workspace: Workspace,
        worker: str,
        ledger: LedgerWriter,
        on_progress: OnProgress | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        wake_fd: int | None = None,
        fence: Callable[[], None] | None = None,
        walltime: Walltime | None = None,
        warnings: Warnings | None = None,
    ) -> None:
        """Make the worker's one runner.

        `on_progress(ended, failed)` receives counts of the running chunk's tasks. `wake_fd` becomes readable when
        `should_stop` must be called. `fence` is called before outputs are collected and records committed; it raises
        LeaseLostError if that is not allowed any more. Tasks that cannot end before `walltime` is over do not start.
        """
        self._workspace, self._worker, self._ledger = workspace, worker, ledger
        self._on_progress = on_progress
        self._fence = fence
        self._walltime = walltime or Walltime()
        self._waiter = Waiter(should_stop, wake_fd)
        env = task_environment(os.environ, workspace.plan.env)
        self._shells = ShellRunner(workspace, env, self._waiter, self._walltime, warnings or Warnings())
        self._functions = FunctionRunner(workspace, worker)
        self._shards = ShardRunner(workspace, self._walltime, fence)
        self._taken = TakenRows(workspace)
        self._variables: Mapping[str, str] = {}  # in the environment of the running chunk

    def run(self, chunk: Chunk, assignment: Assignment | None = None) -> ChunkResult:
        """Run the chunk's tasks, on what is assigned to it. When this returns, the ledger has their outcomes.

        An unexpected error of our own code fails only the tasks that cause it. Raises ExecutionError for errors of the
        machine, such as a full disk; the outcomes of finished tasks are in the ledger then.
        """
        if assignment is None:
            return self._run_chunk(chunk)
        with assignment.in_force():
            self._variables = assignment.variables
            try:
                return self._run_chunk(chunk)
            finally:
                self._variables = {}

    def _run_chunk(self, chunk: Chunk) -> ChunkResult:
        instance = self._workspace.instance(chunk.instance)
        journal = self._journal(instance, chunk)
        try:
            try:
                return self._run(instance, chunk, journal)
            except (*_NOT_TASK_ERRORS, OSError):
                raise
            except Exception:  # noqa: BLE001 - a bug must not end one worker after the other
                traceback.print_exc()
                return self._run_one_by_one(instance, chunk, journal)
        except OSError as error:
            raise machine_error(error) or ExecutionError(
                f"step {instance.id}: {file_error(error)}"
            ) from error

    def _journal(
        self, instance: StepInstance, chunk: Chunk, *, reports_progress: bool = True
    ) -> ChunkJournal:
        on_progress = self._on_progress if reports_progress else None
        take = self._taken.taker(chunk.taken_from) if chunk.taken_from else None
        return ChunkJournal(
            self._workspace, instance, chunk, self._worker, self._ledger, on_progress, self._fence, take
        )

    def _run(self, instance: StepInstance, chunk: Chunk, journal: ChunkJournal) -> ChunkResult:
        if chunk.taken_from:
            self._taken.run(chunk, journal, self._waiter)
            return journal.result()
        match instance.kind:
            case StepKind.CMD:
                self._shells.run(instance, chunk, journal, self._variables)
            case StepKind.FUNCTION:
                if (part := self._in_time(chunk)) is not None:
                    self._functions.run(instance, part, journal, self._waiter)
            case StepKind.AGGREGATE | StepKind.MANIFEST:
                self._shards.run(instance, chunk, journal, self._waiter)
            case _:
                assert_never(instance.kind)
        return journal.result()

    def _in_time(self, chunk: Chunk) -> Chunk | None:
        """The first tasks of the chunk that can end before the walltime is over, one after the other."""
        left_s = self._walltime.left_s()
        tasks = chunk.task_ids()
        if left_s < 0 or chunk.need_s > left_s:
            return None
        if chunk.need_s * len(tasks) <= left_s:
            return chunk
        last = tasks[int(left_s / chunk.need_s) - 1]
        return replace(chunk, hi=last + 1, holes=tuple(hole for hole in chunk.holes if hole[1] <= last))

    def _run_one_by_one(self, instance: StepInstance, chunk: Chunk, journal: ChunkJournal) -> ChunkResult:
        """Run the chunk's remaining tasks, each alone."""
        left = journal.discard_pending()
        results = [journal.result()]
        for task, ended in left.items():
            if self._waiter.stopped or results[-1].stop == "hard_fail":
                break
            if not self._walltime.has_time_for(chunk.need_s):
                break
            results.append(self._run_alone(instance, replace(chunk, lo=task, hi=task + 1, holes=()), ended))
        return _merged(chunk, results)

    def _run_alone(self, instance: StepInstance, chunk: Chunk, ended: EndedTask | None) -> ChunkResult:
        """Run a chunk of one task, or only commit it if it `ended` ok. The task fails if an error is raised."""
        journal = self._journal(instance, chunk, reports_progress=False)
        started, clock = time.time(), time.perf_counter()
        try:
            if ended is None:
                return self._run(instance, chunk, journal)
            journal.end(chunk.lo, Outcome.OK, started=ended.started, seconds=ended.seconds, code=ended.code)
            return journal.result()
        except (*_NOT_TASK_ERRORS, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - see `run`
            traceback.print_exc()
            for task in journal.discard_pending():
                if instance.kind is StepKind.CMD:
                    unmark_finished(str(self._workspace.task_dir(instance, task)))
                cause = f"internal error: {type(error).__name__}: {error}"
                failure = Failure(
                    task=task, cause=cause, exit_code=1, tail=traceback.format_exc()[-TAIL_CHARS:]
                )
                journal.fail(failure, started=started, seconds=time.perf_counter() - clock)
            return journal.result()

    def close(self) -> None:
        """Kill the running task."""
        self._shells.close()
        self._functions.close()
        self._taken.close()


def _merged(chunk: Chunk, parts: Sequence[ChunkResult]) -> ChunkResult:
    """Merge the results of a chunk's parts."""
    return ChunkResult(
        chunk=chunk,
        runs=tuple(sorted(run for part in parts for run in part.runs)),
        deferred=tuple(deferred for part in parts for deferred in part.deferred),
        busy_s=sum(part.busy_s for part in parts),
        spread=added(part.spread for part in parts),
        cut_off_s=max((part.cut_off_s for part in parts), default=0.0),
        stop=next((part.stop for part in reversed(parts) if part.stop), ""),
        note=next((part.note for part in parts if part.note), ""),
    )
