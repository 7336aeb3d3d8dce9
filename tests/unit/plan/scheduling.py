"""A scheduler at hand, whose invariants are checked after every event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from invariants import check
from small_plans import plan

from merlin.plan.consequences import DecidedOutcome
from merlin.plan.pieces import Run, pieces_of
from merlin.plan.plan import StepInstance
from merlin.plan.runs import RunMap
from merlin.plan.schedule import Scheduler
from merlin.plan.tasks import Chunk, ChunkResult, Outcome

OK, FAILED, SKIPPED, INTERRUPTED, SOFT_FAILED = (int(o) for o in Outcome)


class Bench:
    """Does to a scheduler what an executor does."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        check(scheduler)

    def take(self, now: float = 0.0, queue: str | None = None) -> Chunk:
        chunk = self.scheduler.take(now, queue)
        check(self.scheduler)
        assert chunk is not None, self.scheduler.counts()
        return chunk

    def nothing_to_take(self, now: float = 0.0, queue: str | None = None) -> bool:
        return self.scheduler.take(now, queue) is None

    def take_all(self, now: float = 0.0) -> list[Chunk]:
        return list(iter(lambda: self.scheduler.take(now), None))

    def finish(self, chunk: Chunk, *outcomes: Run, now: float = 0.0, **more: Any) -> bool:
        held = self.scheduler.finished(ChunkResult(chunk=chunk, runs=outcomes, **more), now)
        check(self.scheduler)
        return held

    def finish_ok(self, chunk: Chunk, busy_s: float = 0.0) -> bool:
        return self.finish(chunk, *((a, b, OK) for a, b in pieces_of(chunk)), busy_s=busy_s)

    def fail(self, chunk: Chunk, **more: Any) -> bool:
        return self.finish(chunk, *((a, b, FAILED) for a, b in pieces_of(chunk)), **more)

    def lose(self, chunk: Chunk, done: Iterable[Run] = (), **more: Any) -> bool:
        held = self.scheduler.lost(chunk, done, **more)
        check(self.scheduler)
        return held

    def drive(self) -> list[Chunk]:
        """Run everything, one chunk at a time, all ok."""
        out = []
        while (chunk := self.scheduler.take(0.0)) is not None:
            out.append(chunk)
            self.finish_ok(chunk)
        return out

    def verdicts(self) -> list[tuple[str, int, int]]:
        """Where they are: (instance, lo, hi)."""
        return [(v.instance, v.lo, v.hi) for v in self.scheduler.decided_outcomes()]

    def verdict(self) -> DecidedOutcome:
        (verdict,) = self.scheduler.decided_outcomes()
        return verdict


def start(
    *instances: StepInstance, outcomes: Mapping[str, RunMap] | None = None, workers: int = 2, **more: Any
) -> Bench:
    return Bench(Scheduler(plan(*instances), outcomes or {}, num_workers=workers, **more))
