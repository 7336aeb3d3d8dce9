"""Workers, losses and restarts drawn at random, over any implementation of `Progress`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

from merlin.study.pieces import pieces_of
from merlin.study.plan import Plan, StepInstance, StepKind
from merlin.study.progress import Progress
from merlin.study.runs import RunMap
from merlin.study.tasks import NO_OUTCOME, Chunk, ChunkResult, Deferred, Outcome
from merlin.testing.progress import LEASE_S, read_verdicts

OK, FAILED, SKIPPED, INTERRUPTED, SOFT_FAILED = (int(o) for o in Outcome)

Make = Callable[[Plan, Mapping[str, RunMap], int], Progress]  # … number of workers


class World:
    """Simulated workers, the ledger they write, and the rules that must hold."""

    def __init__(self, plan: Plan, random: Random, make: Make, check: Callable[[Progress], None]) -> None:
        self.plan, self.random = plan, random
        self._make, self._check = make, check
        self.spec = {i.id: i for i in plan.instances}
        self.ledger = {i.id: RunMap(i.num_tasks, NO_OUTCOME) for i in plan.instances}
        self.now = 0.0
        self.start()

    def start(self) -> None:
        """A new run on the same ledger."""
        self.out: list[Chunk] = []
        self.vanished: list[Chunk] = []  # their workers are gone and nobody has noticed
        self.progress = self._make(self.plan, self.ledger, self.random.choice([1, 2, 5]))
        self.note_verdicts()

    def note_verdicts(self) -> None:
        self._check(self.progress)
        for v in read_verdicts(self.progress):
            assert self.ledger[v.instance].ranges([NO_OUTCOME, INTERRUPTED], v.lo, v.hi) == [(v.lo, v.hi)]
            self.ledger[v.instance].set(v.lo, v.hi, int(v.outcome))

    def record(self, chunk: Chunk, task: int, outcome: int) -> None:
        """Exactly once: no task that has an outcome gets another."""
        assert self.ledger[chunk.instance][task] in (NO_OUTCOME, INTERRUPTED)
        self.ledger[chunk.instance].set(task, task + 1, outcome)

    def run(self) -> None:
        """Until nothing is left to do."""
        while True:
            while len(self.out) < 5 and (chunk := self.progress.take(self.now)) is not None:
                self._check(self.progress)
                self.expect_sources_ended(chunk)
                self.out.append(chunk)
            assert self.progress.num_running == len(self.out) + len(self.vanished)
            if self.out:
                self.end(self.out.pop(self.random.randrange(len(self.out))))
                self.note_verdicts()
            elif self.vanished:
                self.sweep()
            elif (wake := self.progress.next_wakeup()) is not None:
                self.now = wake
            else:
                return

    def expect_sources_ended(self, chunk: Chunk) -> None:
        spec = self.spec[chunk.instance]
        for edge in spec.edges:
            source = self.ledger[edge.source]
            if edge.kind == "same":
                passing = [OK, SOFT_FAILED]
                passing += [FAILED] if self.spec[edge.source].on_failure == "continue" else []
                assert all(source[task] in passing for task in chunk.task_ids())
            elif edge.kind == "all":
                assert not source.ranges([NO_OUTCOME, INTERRUPTED])
        if spec.kind is StepKind.AGGREGATE:
            self.expect_rows_ended(spec, chunk)

    def expect_rows_ended(self, spec: StepInstance, chunk: Chunk) -> None:
        assert spec.aggregate is not None and chunk.hi == chunk.lo + 1
        size = spec.aggregate.samples_per_shard
        rows = [self.ledger[s][t] for s in spec.aggregate.sources for t in range(self.spec[s].num_tasks)]
        absent = {row for a, b in chunk.absent_rows for row in range(a, b)}
        mine = range(chunk.lo * size, min(len(rows), chunk.hi * size))
        assert all(rows[row] in (OK, FAILED, SOFT_FAILED, SKIPPED) for row in mine)
        assert absent == {row for row in mine if rows[row] != OK}

    def end(self, chunk: Chunk) -> None:
        """A chunk ends as a whole, in part, or with its worker's death, seen or not."""
        how = self.random.choice(["whole", "whole", "whole", "part", "lost", "back", "vanish"])
        if how == "back":
            assert self.progress.give_back(chunk)
            return
        runs: list[tuple[int, int, int]] = []
        deferred: list[Deferred] = []
        for task in chunk.task_ids():
            lot = self.random.random()
            if how != "whole" and lot < 0.5:
                if lot < 0.25:
                    runs.append((task, task + 1, INTERRUPTED))
                continue
            if how in ("whole", "part") and lot > 0.9:
                later = replace(chunk, lo=task, hi=task + 1, holes=(), retries=chunk.retries + 1)
                deferred.append(Deferred(chunk=later, delay_s=self.random.random()))
                continue
            outcome = self.random.choice([FAILED, SOFT_FAILED]) if self.random.random() < 0.25 else OK
            self.record(chunk, task, outcome)
            runs.append((task, task + 1, outcome))
        if how == "vanish":
            self.vanished.append(chunk)
            if self.random.random() < 0.5:
                self.sweep()
        elif how == "lost":
            assert self.progress.lost(chunk, runs, self.now, signal="SIGKILL")
        else:
            result = ChunkResult(chunk=chunk, runs=tuple(runs), deferred=tuple(deferred), busy_s=0.01)
            assert self.progress.finished(result, self.now)

    def sweep(self) -> None:
        """Time goes by; those who live renew their leases, and what nobody renews is taken over."""
        for _ in range(2):
            self.now += 0.7 * LEASE_S
            assert self.progress.beat(self.out, self.now) == []
        taken = {(c.instance, c.lo, c.hi, c.attempt): c for c in self.progress.expired(self.now)}
        gone, self.vanished = self.vanished, []
        assert set(taken) == {(c.instance, c.lo, c.hi, c.attempt) for c in gone}
        for old in gone:
            assert self.progress.beat([old], self.now) == [old]
            assert not self.progress.finished(ChunkResult(chunk=old, runs=()), self.now)
            assert not self.progress.give_back(old)
            new = taken[old.instance, old.lo, old.hi, old.attempt]
            done = [r for a, b in pieces_of(new) for r in self.ledger[new.instance].runs(a, b)]
            assert self.progress.lost(new, done, self.now, infrastructure=True)
        self.note_verdicts()

    def expect_complete(self) -> None:
        assert self.progress.is_complete
        for id, counts in self.progress.counts().items():
            have = self.ledger[id].counts()
            assert counts.missing == 0
            assert counts.planned == counts.ok + counts.failed + counts.skipped
            ok, failed, skipped, softly = (have.get(v, 0) for v in (OK, FAILED, SKIPPED, SOFT_FAILED))
            assert (counts.ok, counts.failed, counts.skipped) == (ok, failed + softly, skipped)
            assert counts.soft_failed == softly
        for id, spec in self.spec.items():
            for edge in spec.edges:
                if edge.kind != "same" or self.spec[edge.source].on_failure == "continue":
                    continue
                for a, b in self.ledger[edge.source].ranges([FAILED, SKIPPED]):
                    assert self.ledger[id].ranges([SKIPPED], a, b) == [(a, b)]
