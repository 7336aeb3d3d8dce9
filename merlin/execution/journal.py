"""Collects the outcomes of a chunk's tasks and commits them to the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from merlin.execution.task_files import unmark_finished
from merlin.ledger.records import ChunkRecord, Failure
from merlin.ledger.writer import LedgerWriter
from merlin.plan.durations import Spread, spread_of
from merlin.plan.plan import StepInstance, StepKind
from merlin.plan.tasks import NO_OUTCOME, Chunk, ChunkResult, Deferred, Outcome, ReturnCode
from merlin.workspace.directory import Workspace

if TYPE_CHECKING:
    from merlin.shards.writing.collect import CollectRequest

    TakeRows = Callable[[CollectRequest], dict[int, str]]

FLUSH_S = 1.0  # a kill loses at most this much finished work,
FLUSH_TASKS = 5000  # or this many tasks
PERMISSION_S = 1.0  # how long the permission to commit is valid; less than any lease

Outputs = dict[str, NDArray[Any]]
OnProgress = Callable[[int, int], None]


class EndedTask(Struct, frozen=True):
    """The end of a task that is not in the ledger yet."""

    started: float  # epoch seconds
    seconds: float
    code: int


class ChunkJournal:
    """Collects the outcomes of one chunk's tasks and commits them to the ledger in slices.

    Outputs are collected before a slice is committed, so the outputs of a task that is ok in the ledger are safe. Tasks
    may end in any order; each is committed once.
    """

    def __init__(
        self,
        workspace: Workspace,
        instance: StepInstance,
        chunk: Chunk,
        worker: str,
        ledger: LedgerWriter,
        on_progress: OnProgress | None,
        fence: Callable[[], None] | None = None,
        take_rows: TakeRows | None = None,
    ) -> None:
        """`take_rows` collects the outputs of tasks if they lie neither in files nor in memory."""
        self._workspace, self._instance, self._chunk = workspace, instance, chunk
        self._worker, self._ledger, self._on_progress, self._fence = worker, ledger, on_progress, fence
        self._take_rows = take_rows
        n = chunk.hi - chunk.lo
        self.outcomes = np.full(n, NO_OUTCOME, np.uint8)
        self._seconds = np.zeros(n, np.float32)
        self._starts = np.zeros(n, np.float64)
        self._codes = np.zeros(n, np.int16)
        self._committed = np.zeros(n, bool)
        self._failures: dict[int, Failure] = {}
        self._deferred_tasks: dict[bool, list[int]] = {}
        self._pending_lo = self._pending_hi = 0  # uncommitted slice, relative to chunk.lo
        self._num_pending = 0
        self._flushed = self._clock = time.perf_counter()
        self._ended = self._failed = 0
        self.stop = ""
        self._note = ""

    def end(self, task: int, outcome: Outcome, *, started: float, seconds: float, code: int = 0) -> None:
        """Note that a task has ended."""
        i = task - self._chunk.lo
        self.outcomes[i] = outcome
        self._seconds[i] = seconds
        self._starts[i] = started
        self._codes[i] = max(-32768, min(32767, code))
        self._extend_slice(i, i + 1)

    def fail(self, failure: Failure, *, started: float, seconds: float) -> None:
        self._failures[failure.task] = failure
        self.end(failure.task, Outcome.FAILED, started=started, seconds=seconds, code=failure.exit_code)

    def end_all(
        self, ok: NDArray[np.bool_], tasks: NDArray[np.int64], *, started: float, seconds: float
    ) -> None:
        """Note that tasks have ended together in one call. `ok` has one entry per entry of `tasks`."""
        index = tasks[ok] - self._chunk.lo
        self.outcomes[index] = Outcome.OK
        self._seconds[index] = seconds / max(1, len(tasks))
        self._starts[index] = started
        if len(index):
            self._extend_slice(int(index[0]), int(index[-1]) + 1)

    def defer(self, task: int, *, use_restart: bool) -> None:
        """Note that the task asks to run again."""
        self._deferred_tasks.setdefault(use_restart, []).append(task)

    def flush_if_due(self) -> None:
        now = time.perf_counter()
        if self._num_pending >= FLUSH_TASKS or now - self._flushed >= FLUSH_S:
            self.flush()

    def flush(self, outputs: Outputs | None = None) -> None:
        """Collect and commit the tasks that ended since the last call. `outputs` has one row per task of the chunk."""
        lo, hi = self._pending_lo, self._pending_hi
        if hi > lo:
            asked = self._ask_permission()
            self._collect(lo, hi, outputs)
            self._workspace.require_there()  # else outputs have gone where nobody looks for them
            if time.monotonic() - asked > PERMISSION_S:
                self._ask_permission()
            self._commit(lo, hi)
        self._num_pending = 0
        self._flushed = time.perf_counter()
        if self._on_progress is not None and hi > lo:
            self._on_progress(self._ended, self._failed)

    def _ask_permission(self) -> float:
        """Ask for permission to commit, until the answer is recent enough. Returns the time of the request (monotonic).

        A process may be suspended after its lease was checked, and continue when another worker has the chunk.
        """
        while True:
            asked = time.monotonic()
            if self._fence is None:
                return asked
            self._fence()
            if time.monotonic() - asked <= PERMISSION_S:
                return asked

    def discard_pending(self) -> dict[int, EndedTask | None]:
        """Discard what is not committed. Returns the remaining tasks, with the end of each that ended ok."""
        later = {task for tasks in self._deferred_tasks.values() for task in tasks}
        lo = self._chunk.lo
        left = {
            task: self._ended_ok(task - lo)
            for task in self._chunk.task_ids()
            if not (self._committed[task - lo] or task in later)
        }
        self._pending_lo = self._pending_hi = self._num_pending = 0
        self._failures.clear()
        self.outcomes[~self._committed] = NO_OUTCOME
        return left

    def _ended_ok(self, i: int) -> EndedTask | None:
        if self.outcomes[i] != Outcome.OK or self._instance.kind is not StepKind.CMD:
            return None
        return EndedTask(float(self._starts[i]), float(self._seconds[i]), int(self._codes[i]))

    def result(self) -> ChunkResult:
        """Commit the rest, and return the result of the chunk."""
        self.flush()
        return ChunkResult(
            chunk=self._chunk,
            runs=self._runs(),
            deferred=tuple(self._deferred(use, tasks) for use, tasks in sorted(self._deferred_tasks.items())),
            busy_s=time.perf_counter() - self._clock,
            spread=self._spread(),
            cut_off_s=float(self._seconds[self.outcomes == Outcome.INTERRUPTED].max(initial=0.0)),
            stop=self.stop,
            note=self._note,
        )

    def _extend_slice(self, lo: int, hi: int) -> None:
        if self._pending_lo == self._pending_hi:
            self._pending_lo, self._pending_hi = lo, hi
        else:
            self._pending_lo, self._pending_hi = min(lo, self._pending_lo), max(hi, self._pending_hi)
        self._num_pending += hi - lo

    def _collect(self, lo: int, hi: int, outputs: Outputs | None) -> None:
        """Give the outputs of ok tasks to the data sets. A task with a bad output fails."""
        instance = self._instance
        if not instance.kind.runs_user_code or not (instance.feeds or outputs):
            return
        first = self._chunk.lo
        for target in instance.feeds or (None,):
            ok = (self.outcomes[lo:hi] == Outcome.OK) & ~self._committed[lo:hi]
            if not ok.any():
                return
            cut = None if outputs is None else {name: a[lo:hi] for name, a in outputs.items()}
            causes = self._save(target, first + lo, first + hi, ok, cut)
            for task, cause in causes.items():
                self._reject(task, cause)

    def _save(
        self, target: str | None, lo: int, hi: int, ok: NDArray[np.bool_], outputs: Outputs | None
    ) -> dict[int, str]:
        from merlin.shards.writing.bundle import Origin
        from merlin.shards.writing.collect import CollectRequest, collect_chunk, save_outputs

        workspace, instance = self._workspace, self._instance
        origin = Origin(self._chunk.attempt, self._worker, self._ledger.writer.session)
        if target is not None:
            request = CollectRequest(
                workspace=workspace,
                aggregate=workspace.instance(target),
                source=instance,
                lo=lo,
                hi=hi,
                ok=ok,
                outputs=outputs if instance.kind is StepKind.FUNCTION else None,
                origin=origin,
            )
            return collect_chunk(request) if self._take_rows is None else self._take_rows(request)
        assert outputs is not None
        return save_outputs(workspace, instance, lo, hi, ok, outputs, origin)

    def _reject(self, task: int, cause: str) -> None:
        i = task - self._chunk.lo
        self.outcomes[i] = Outcome.FAILED
        self._failures[task] = Failure(task=task, cause=cause, exit_code=int(self._codes[i]))
        if self._instance.kind is StepKind.CMD:
            unmark_finished(str(self._workspace.task_dir(self._instance, task)))

    def _commit(self, lo: int, hi: int) -> None:
        first = self._chunk.lo
        outcomes = np.where(self._committed[lo:hi], np.uint8(NO_OUTCOME), self.outcomes[lo:hi])
        begun = outcomes != NO_OUTCOME
        start = float(self._starts[lo:hi][begun].min())
        offsets = np.where(begun, self._starts[lo:hi] - start, 0.0)
        failures = tuple(self._failures[t] for t in sorted(self._failures))
        tries = np.full(hi - lo, min(self._chunk.retries, 255), np.uint8) if self._chunk.retries else None
        self._ledger.append(
            ChunkRecord(
                instance=self._instance.id,
                lo=first + lo,
                hi=first + hi,
                started=start,
                outcomes=outcomes,
                seconds=self._seconds[lo:hi].copy(),
                attempt=self._chunk.attempt,
                elapsed_s=0.0 if self._chunk.collect_only else None,  # no time of the step
                started_offsets=offsets.astype(np.float32) if self._instance.kind is StepKind.CMD else None,
                exit_codes=self._codes[lo:hi].copy() if self._codes[lo:hi].any() else None,
                tries=tries,
                failures=failures,
            )
        )
        self._committed[lo:hi] |= begun
        self._ended += int(np.count_nonzero(begun & (outcomes != Outcome.INTERRUPTED)))
        self._failed += len(failures)
        if failures and not self._note:
            self._note = f"task {failures[0].task}: {failures[0].cause}"
        self._failures.clear()
        self._pending_lo = self._pending_hi = 0

    def _spread(self) -> Spread:
        ended = (self.outcomes != NO_OUTCOME) & (self.outcomes != Outcome.INTERRUPTED)
        seconds, num = np.unique(self._seconds[ended], return_counts=True)
        return spread_of(zip(seconds.tolist(), num.tolist(), strict=True))

    def _runs(self) -> tuple[tuple[int, int, int], ...]:
        outcomes = self.outcomes
        if self._failed:
            chosen = (outcomes == Outcome.FAILED) & (self._codes == ReturnCode.SOFT_FAIL)
            outcomes = np.where(chosen, np.uint8(Outcome.SOFT_FAILED), outcomes)
        edges = np.flatnonzero(np.diff(outcomes)) + 1
        bounds = [0, *edges.tolist(), len(outcomes)]
        first = self._chunk.lo
        return tuple(
            (first + a, first + b, int(outcomes[a])) for a, b in pairwise(bounds) if outcomes[a] != NO_OUTCOME
        )

    def _deferred(self, use_restart: bool, tasks: Sequence[int]) -> Deferred:
        lo, hi = tasks[0], tasks[-1] + 1
        holes = tuple((a + 1, b) for a, b in pairwise(tasks) if b > a + 1)
        chunk = replace(
            self._chunk,
            lo=lo,
            hi=hi,
            holes=holes,
            retries=self._chunk.retries + 1,
            use_restart=use_restart,
        )
        return Deferred(chunk=chunk, delay_s=self._instance.retry_delay_s)
