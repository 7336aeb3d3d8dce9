"""A study on simulated workers: what may go wrong does, and every rule is checked after every event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random

from invariants import check_owner
from msgspec.structs import replace

from merlin.plan.failure_limits import LOSS_LIMIT
from merlin.plan.memories import Death, Deferral
from merlin.plan.owner import Handout
from merlin.plan.pieces import Run, pieces_of
from merlin.plan.plan import Plan, StepInstance, StepKind
from merlin.plan.reports import ChunkReport
from merlin.plan.runs import RunMap
from merlin.plan.take_over import Legacy, take_over
from merlin.plan.tasks import NO_OUTCOME, Chunk, ChunkResult, Deferred, Outcome

OK, FAILED, SKIPPED, INTERRUPTED, SOFT_FAILED = (int(o) for o in Outcome)
MAX_RETRIES = 3
CALM_AFTER = 400  # events; then nothing goes wrong any more

Task = tuple[str, int]


@dataclass
class Holder:
    """A worker with a chunk."""

    chunk: Chunk
    done: dict[int, int] = field(default_factory=dict)  # what it has committed: task -> outcome


class World:
    """The ledger and the server are simple and right; owner and workers may stop between any two steps."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan, self.random = plan, Random(seed)
        self.spec = {i.id: i for i in plan.instances}
        self.ledger = {i.id: RunMap(i.num_tasks) for i in plan.instances}
        self.cancelled: set[str] = set()  # instances
        self.now = 0.0
        self.begin_run()

    def begin_run(self) -> None:
        """Another run on the same ledger."""
        self.attempts: dict[Task, int] = {}  # of what the ledger has of this run
        self.last_interrupted = 0  # the highest attempt with an interrupted task
        self.memories: list[Deferral | Death] = []
        self.offers: dict[str, Chunk] = {}
        self.leases: dict[str, Chunk] = {}
        self.mail: list[ChunkReport | tuple[str, str]] = []  # a report, or ("taken" or "expired", lease)
        self.num_dealt_with = 0  # letters that the next owner does not read again
        self.holders: dict[str, Holder] = {}  # by lease, also those whose lease is gone
        self.retries: dict[Task, tuple[int, bool]] = {}
        self.deaths: Counter[tuple[str, int, bool]] = Counter()
        self.num_owners = 0
        self.is_stormy = True
        self.take_over()

    def run(self) -> None:
        """Until every task has ended."""
        actions = [self.round, *[self.worker_acts] * 4, *[self.worker_takes] * 2, self.expire, self.cancel]
        num_tasks = sum(instance.num_tasks for instance in self.plan.instances)
        for num in count():
            self.is_stormy = num < CALM_AFTER
            assert num < 10 * CALM_AFTER + 40 * num_tasks, self.owner.scheduler.counts()
            if self.owner.scheduler.is_complete:
                self.write()
                return
            self.now += 0.2
            self.random.choice(actions)()
            check_owner(self.owner)

    def mishap(self, probability: float) -> bool:
        return self.is_stormy and self.random.random() < probability

    # ------------------------------------------------------------------- the owner

    def round(self) -> None:
        """What the owner does again and again; it may be replaced anywhere."""
        for letter in self.mail[self.num_read :]:
            self.read_letter(letter)
            self.num_read += 1
            check_owner(self.owner)
            if self.mishap(0.02):
                return self.take_over()
        if self.mishap(0.05):
            return self.take_over()
        self.write()
        if self.mishap(0.05):
            return self.take_over()
        offers = partial(
            self.owner.offers, {"cpu": 3, "gpu": 1}, self.now, machines={"cpu": [(4, 1)], "gpu": [(2, 1)]}
        )
        chunks = offers(limit=self.random.randint(1, 5))
        wakeup = self.owner.scheduler.next_wakeup()
        if (
            wakeup is not None and wakeup <= self.now
        ):  # then it waits for room, and nobody has to wake up for it
            assert offers(limit=99) == []
        if self.mishap(0.05):
            return self.take_over()
        for chunk in chunks:
            self.expect_may_run(chunk)
        self.offers |= {chunk.lease: chunk for chunk in chunks}
        self.num_dealt_with = self.num_read
        return self.take_over() if self.mishap(0.05) else None

    def read_letter(self, letter: ChunkReport | tuple[str, str]) -> None:
        match letter:
            case ("taken", lease):
                self.owner.taken(lease)
            case ("expired", lease):
                if (chunk := self.owner.scheduler.held(lease)) is not None:
                    assert self.owner.expired(lease, self.done(chunk)) == chunk
            case ChunkReport() as report:
                done = self.done(report.chunk) if report.died or report.is_interrupted else ()
                held = self.owner.reported(report, done, self.now)
                assert held or report.chunk.instance in self.cancelled
                assert not self.owner.reported(report, done, self.now)  # a second time

    def done(self, chunk: Chunk) -> list[Run]:
        runs = self.ledger[chunk.instance].runs(chunk.lo, chunk.hi)
        return [run for run in runs if run[2] != NO_OUTCOME]

    def write(self) -> None:
        """What the owner has decided."""
        for v in self.owner.scheduler.decided_outcomes():
            ended = self.ledger[v.instance].ranges((OK, FAILED, SKIPPED, SOFT_FAILED), v.lo, v.hi)
            assert not ended or v.instance in self.cancelled
            if v.cause.startswith("killed"):
                deaths = self.deaths[v.instance, v.lo, False]
                assert deaths >= self.spec[v.instance].crash_limit
            for task in range(v.lo, v.hi):
                assert v.attempt > self.attempts.get((v.instance, task), 0)
                self.attempts[v.instance, task] = v.attempt
            self.ledger[v.instance].set(v.lo, v.hi, int(v.outcome))
        self.memories += self.owner.scheduler.memories()

    def expire(self) -> None:
        """Leases run out, of workers that are gone, and of some that are slow."""
        for lease in list(self.leases):
            if lease not in self.holders or self.mishap(0.05):
                del self.leases[lease]
                self.mail.append(("expired", lease))

    def cancel(self) -> None:
        """An operator ends some steps."""
        if self.mishap(0.01):
            ids = self.random.sample(sorted(self.spec), self.random.randint(1, len(self.spec)))
            self.cancelled.update(ids)
            chunks = self.owner.fail(ids, "cancelled")
            check_owner(self.owner)
            if self.mishap(0.2):
                return self.take_over()
            self.write()
            self.workers_act()
            if self.mishap(0.2):
                return self.take_over()
            self.void(chunk.lease for chunk in chunks)
        return None

    def take_over(self) -> None:
        """Another owner, from what the one before has left; the workers go on meanwhile."""
        handouts = [Handout(chunk=chunk, since=0.0) for chunk in self.offers.values()]
        handouts += [Handout(chunk=chunk, since=0.0, worker="w") for chunk in self.leases.values()]
        self.workers_act()
        outcomes = {id: RunMap.from_runs(m.size, m.runs()) for id, m in self.ledger.items()}
        first_attempt, memories = self.last_interrupted + 1, list(self.memories)
        self.workers_act()
        reports = [
            [x for x in part if isinstance(x, ChunkReport)]
            for part in (self.mail[: self.num_dealt_with], self.mail[self.num_dealt_with :])
        ]
        taken = {letter[1]: "w" for letter in self.mail if isinstance(letter, tuple) and letter[0] == "taken"}
        self.hide(outcomes, reports[0])
        legacy = Legacy(
            handouts=handouts,
            outcomes=outcomes,
            memories=memories,
            taken=taken,
            dealt_with=reports[0],
            unread=reports[1],
        )
        self.workers_act()
        self.num_owners += 1
        self.owner, void = take_over(
            self.plan, legacy, first_attempt=first_attempt, name=f"{self.num_owners}.", min_chunk_s=1.5
        )
        check_owner(self.owner)
        self.num_read = self.num_dealt_with
        self.workers_act()
        self.void(void)
        self.write()

    def hide(self, outcomes: dict[str, RunMap], reports: list[ChunkReport]) -> None:
        """A network file system shows some of what was reported later."""
        for report in reports:
            if report.result is not None and self.mishap(0.3):
                for a, b, outcome in report.result.runs:
                    for x, y in outcomes[report.chunk.instance].ranges((outcome,), a, b):
                        outcomes[report.chunk.instance].set(x, y, NO_OUTCOME)

    def void(self, leases: Collection[str]) -> None:
        for lease in leases:
            self.offers.pop(lease, None)
            self.leases.pop(lease, None)

    # ----------------------------------------------------------------- the workers

    def workers_act(self) -> None:
        for _ in range(self.random.randrange(12) if self.is_stormy else 0):
            self.random.choice([self.worker_acts, self.worker_takes])()

    def worker_takes(self) -> None:
        if self.offers:
            lease = self.random.choice(list(self.offers))
            self.leases[lease] = chunk = self.offers.pop(lease)
            self.holders[lease] = Holder(chunk)
            self.mail.append(("taken", lease))

    def worker_acts(self) -> None:
        if not self.holders:
            return
        lease = self.random.choice(list(self.holders))
        holder = self.holders[lease]
        chunk = holder.chunk
        if lease not in self.leases:  # it is fenced: nothing can be committed or reported
            assert not self.settle(ChunkReport(chunk=chunk, worker="w"))
            return
        trouble = ["commit", "commit", "die", "die", "die", "interrupt", "give back", "vanish"]
        match self.random.choice(["finish", "finish", *(trouble if self.is_stormy else ())]):
            case "finish":
                self.finish(holder)
            case "commit":
                self.commit(holder, 0.5)
            case "die":
                self.commit(holder, 0.5)
                is_infrastructure = self.random.random() < 0.3
                self.count_death(chunk, is_infrastructure)
                assert self.settle(
                    ChunkReport(chunk=chunk, worker="w", died="SIGKILL", is_infrastructure=is_infrastructure)
                )
            case "interrupt":
                self.commit(holder, 0.5)
                assert self.settle(ChunkReport(chunk=chunk, worker="w", is_interrupted=True))
            case "give back":
                if not holder.done:
                    assert self.settle(ChunkReport(chunk=chunk, worker="w"))
            case "vanish":
                self.commit(holder, 0.3)
                del self.holders[lease]

    def settle(self, report: ChunkReport) -> bool:
        """End the lease, with a report."""
        lease = report.chunk.lease
        self.holders.pop(lease, None)
        if self.leases.pop(lease, None) is None:
            return False
        self.mail.append(report)
        return True

    def commit(self, holder: Holder, share: float) -> None:
        """Some of the tasks end."""
        for task in holder.chunk.task_ids():
            if task not in holder.done and self.random.random() < share:
                outcome = self.random.choices((OK, FAILED, SOFT_FAILED, INTERRUPTED), (10, 1, 1, 1))[0]
                self.record(holder, task, outcome)

    def record(self, holder: Holder, task: int, outcome: int) -> None:
        """Exactly once: no task that has an outcome gets another."""
        chunk, id = holder.chunk, holder.chunk.instance
        holder.done[task] = outcome
        before = self.attempts.get((id, task), 0)
        if before >= chunk.attempt and id in self.cancelled:  # outranked by the verdict
            return
        assert chunk.attempt > before, f"{task} of {chunk} is outranked by attempt {before}"
        assert self.ledger[id][task] in (NO_OUTCOME, INTERRUPTED), f"{task} of {chunk} has ended before"
        self.attempts[id, task] = chunk.attempt
        self.ledger[id].set(task, task + 1, outcome)
        if outcome == INTERRUPTED:
            self.last_interrupted = max(self.last_interrupted, chunk.attempt)

    def finish(self, holder: Holder) -> None:
        """The rest of the chunk ends, or asks to be run again, or is forgotten."""
        chunk, deferred = holder.chunk, []
        for task in chunk.task_ids():
            lot = self.random.random()
            if task in holder.done or (lot > 0.97 and self.is_stormy):
                continue
            if lot > 0.85 and chunk.retries < MAX_RETRIES:
                again = replace(chunk, lo=task, hi=task + 1, holes=(), retries=chunk.retries + 1, lease="")
                again = replace(again, use_restart=self.random.random() < 0.5)
                deferred.append(Deferred(chunk=again, delay_s=self.random.random()))
                self.retries[chunk.instance, task] = (again.retries, again.use_restart)
            else:
                self.record(holder, task, FAILED if lot < 0.1 else OK)
        runs = tuple((t, t + 1, outcome) for t, outcome in sorted(holder.done.items()))
        result = ChunkResult(chunk=chunk, runs=runs, deferred=tuple(deferred), busy_s=0.1)
        assert self.settle(ChunkReport(chunk=chunk, worker="w", result=result))

    def count_death(self, chunk: Chunk, is_infrastructure: bool) -> None:
        left = [t for t in chunk.task_ids() if self.ledger[chunk.instance][t] in (NO_OUTCOME, INTERRUPTED)]
        if len(left) == 1:
            key = (chunk.instance, left[0], is_infrastructure)
            self.deaths[key] += 1
            assert self.deaths[key] <= (
                LOSS_LIMIT if is_infrastructure else self.spec[chunk.instance].crash_limit
            )

    # ------------------------------------------------------------------- the rules

    def expect_may_run(self, chunk: Chunk) -> None:
        """It has not ended, what it needs has, and its retries are known."""
        spec, have = self.spec[chunk.instance], self.ledger[chunk.instance]
        for a, b in pieces_of(chunk):
            assert not have.ranges((OK, FAILED, SKIPPED, SOFT_FAILED), a, b), f"of {chunk} some has ended"
        for task in chunk.task_ids():
            expected = self.retries.get((chunk.instance, task), (0, False))
            assert (chunk.retries, chunk.use_restart) == expected, (chunk, task)
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

    def expect_complete(self) -> None:
        """Every task has one outcome, of which owner and ledger know the same, and skips follow from failures."""
        for id, counts in self.owner.scheduler.counts().items():
            have = self.ledger[id].counts()
            ok, failed, skipped, softly = (have.get(v, 0) for v in (OK, FAILED, SKIPPED, SOFT_FAILED))
            assert (counts.ok, counts.failed, counts.skipped) == (ok, failed + softly, skipped)
            assert counts.missing == 0 and counts.soft_failed == softly
        for id, spec in self.spec.items():
            for edge in spec.edges:
                if edge.kind != "same" or self.spec[edge.source].on_failure == "continue" or self.cancelled:
                    continue
                for a, b in self.ledger[edge.source].ranges([FAILED, SKIPPED]):
                    assert self.ledger[id].ranges([SKIPPED], a, b) == [(a, b)]
