"""A run's decisions and their record: the scheduler with its eyes and hands on the ledger.

Executors own processes or messages and call this; nothing here starts a process.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from merlin.errors import ExecutionError
from merlin.ledger.records import RESET, EventRecord, RangeRecord
from merlin.ledger.replay import replay
from merlin.ledger.session import next_session
from merlin.ledger.writer import LedgerWriter
from merlin.study.plan import Plan
from merlin.study.reopen import reopen, reopen_failed
from merlin.study.restrict import restrict
from merlin.study.runs import RunMap
from merlin.study.schedule import TARGET_S, Counts, Scheduler, Verdict
from merlin.study.tasks import NO_OUTCOME, Chunk, ChunkResult
from merlin.study.workspace import Workspace

CONTROLLER = "controller"  # its name as a writer of the ledger


def verdict_records(verdicts: Iterable[Verdict]) -> list[RangeRecord]:
    """Verdicts as the ledger keeps them."""
    return [
        RangeRecord(
            instance=v.instance, lo=v.lo, hi=v.hi, outcome=v.outcome, cause=v.cause, attempt=v.attempt
        )
        for v in verdicts
    ]


def reset_records(reopened: Mapping[str, list[tuple[int, int]]]) -> list[RangeRecord]:
    """Records that make tasks missing again; to be appended together."""
    return [
        RangeRecord(instance=id, lo=lo, hi=hi, outcome=RESET, cause="to be run again", attempt=0)
        for id, ranges in reopened.items()
        for lo, hi in ranges
    ]


def _allowing(plan: Plan, max_failures: float) -> Plan:
    """The plan with another limit for the steps that have one."""
    instances = (
        i if i.max_failures is None else replace(i, max_failures=max_failures) for i in plan.instances
    )
    return replace(plan, instances=tuple(instances))


class Conductor:
    """One run of a study: reads the ledger at the start and after losses, writes what no worker writes.

    `session` is to be given to the ledger writers of all workers of this run.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.session = next_session(workspace.ledger_dir, time.time())
        self._ledger = LedgerWriter(
            workspace.ledger_dir,
            CONTROLLER,
            session=self.session,
            study_id=workspace.plan.study_id,
            sync=False,  # skips follow from other outcomes; a power cut costs nothing
        )

    def open(
        self,
        *,
        num_workers: int,
        target_s: float = TARGET_S,
        redo_failed: bool = False,
        steps: Collection[str] | None = None,
        again: Mapping[str, list[tuple[int, int]]] | None = None,
        only: Collection[str] | None = None,
        max_failures: float | None = None,
    ) -> None:
        """Read the ledger and decide what is to do; with `redo_failed`, failed tasks (of `steps`), too.

        `again`: tasks to be run again however they ended, and the shards and manifests that follow from them. `only`:
        the step instances to be run, all of whose other sources have ended. `max_failures`: in place of the plan's.
        """
        plan = self._workspace.plan
        self._replay = replay(self._workspace.ledger_dir, plan)
        if redo_failed:
            self._forget(reopen_failed(plan, self._replay.outcomes, steps))
        if again:
            self._forget(reopen(plan, self._replay.outcomes, again))
        if only is not None:
            plan = restrict(plan, only)
        if max_failures is not None:
            plan = _allowing(plan, max_failures)
        self.scheduler = Scheduler(plan, self._replay.outcomes, num_workers=num_workers, target_s=target_s)
        self.flush()

    def _forget(self, reopened: Mapping[str, list[tuple[int, int]]]) -> None:
        self._ledger.append(*reset_records(reopened))  # all or none
        self._replay.update()

    def outcomes(self) -> Mapping[str, RunMap]:
        """What the ledger holds now."""
        self._replay.update()
        return self._replay.outcomes

    def lost(self, chunk: Chunk, now: float, *, crash: str = "") -> None:
        """The chunk's worker is gone; `crash` says how it died, "" that we ended it ourselves."""
        done = tuple(
            r for r in self.outcomes()[chunk.instance].runs(chunk.lo, chunk.hi) if r[2] != NO_OUTCOME
        )
        if crash:
            held = self.scheduler.lost(chunk, done, now, signal=crash)
        else:
            held = self.scheduler.finished(ChunkResult(chunk=chunk, runs=done), now)
        self._expect_held(chunk, held)
        self.flush()

    def finished(self, result: ChunkResult, now: float) -> None:
        self._expect_held(result.chunk, self.scheduler.finished(result, now))
        self.flush()

    def _expect_held(self, chunk: Chunk, held: bool) -> None:
        """Here nobody takes a lease away, so one that is not held is a bug."""
        if not held:
            story = self.scheduler.story(chunk.instance, chunk.lo)
            raise ExecutionError(f"a chunk ended that does not run: {chunk}; {story}")

    def event(self, kind: str, **data: Any) -> None:
        """Write down something that happened to the run."""
        self._ledger.append(EventRecord(kind=kind, data=data))

    def flush(self) -> None:
        """Write the scheduler's verdicts."""
        verdicts = self.scheduler.verdicts()
        self._ledger.append(*verdict_records(verdicts))
        self.scheduler.written(verdicts)

    def per_step(self, in_flight: Mapping[str, tuple[int, int]] | None = None) -> dict[str, Counts]:
        """Counts per step, over its instances; `in_flight`: (ended, failed) as running chunks report."""
        names = ("planned", "ok", "failed", "skipped", "running", "ready", "waiting", "queued")
        sums: dict[str, list[int]] = {}
        counts = self.scheduler.counts()
        for instance in self.scheduler.plan.instances:
            have = counts[instance.id]
            total = sums.setdefault(instance.step, [0] * len(names))
            ended, failed = (in_flight or {}).get(instance.id, (0, 0))
            ended = min(ended, have.running)
            failed = min(failed, ended)
            shift = {"ok": ended - failed, "failed": failed, "running": -ended}
            for i, name in enumerate(names):
                total[i] += getattr(have, name) + shift.get(name, 0)
        return {step: Counts(**dict(zip(names, total, strict=True))) for step, total in sums.items()}

    def close(self) -> None:
        self._ledger.close()

    def __enter__(self) -> Conductor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
