"""Decides which chunk runs next: events in, chunks and verdicts out.

The scheduler knows no clock, disk or process: time is an argument, the executor carries the decisions out and
writes the verdicts into the ledger. Its state is run-length coded, so it grows with the number of *changes*
between neighbouring tasks, not with the number of tasks. The states of a task::

    waiting --> ready --> running --> ok | failed | failed softly
       |          ^          |
       |          +- queued <+   handed back, to run again: deferred, interrupted, or its worker was lost
       +--> skipped              what it depends on did not end ok

A task fails softly by its own choice (exit code 101): it counts as failed, and what depends on it runs all the same.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from merlin.errors import ExecutionError
from merlin.plan.chunking import LEAST_S, ChunkSizer
from merlin.plan.pieces import Range, Run, chunk_of, clip, halves, merged, num_tasks, pieces_of
from merlin.plan.plan import Plan, StepInstance, StepKind
from merlin.plan.runs import RunMap
from merlin.plan.tasks import FAILURES, Chunk, ChunkResult, Outcome

OK, FAILED, SKIPPED, SOFT_FAILED = (
    int(o) for o in (Outcome.OK, Outcome.FAILED, Outcome.SKIPPED, Outcome.SOFT_FAILED)
)
WAITING, READY, QUEUED, RUNNING = 10, 11, 12, 13
ENDED = frozenset((OK, FAILED, SKIPPED, SOFT_FAILED))
NOT_ENDED = (WAITING, READY, QUEUED, RUNNING)
STATE_NAMES = {
    OK: "ok", FAILED: "failed", SKIPPED: "skipped", SOFT_FAILED: "soft_failed",
    WAITING: "waiting", READY: "ready", QUEUED: "queued", RUNNING: "running",
}  # fmt: skip

MAX_SPARSE_SPAN = 4096  # a chunk with holes reaches no further than this, or four times the tasks it runs
MAX_PIECES = 2000  # of one chunk
TARGET_S = 1.5
LOSS_LIMIT = 10  # a task that was alone in its chunk when its worker was lost, so many times, has failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An outcome that no worker reports, so the executor must write it into the ledger."""

    instance: str
    lo: int
    hi: int
    outcome: Outcome  # SKIPPED, or FAILED for a task that keeps killing its worker
    cause: str
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """Tasks that asked to be run again: outcomes do not tell, so the executor writes it into the ledger, too."""

    chunk: Chunk  # as it will be handed out
    not_before: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A task that was alone in its chunk when its worker was lost; for the ledger, as a `Deferral`."""

    instance: str
    task: int
    infrastructure: bool  # the worker was not killed by the task
    lease: str  # of that chunk: a death counts once, however often it is heard of


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Tasks of one step instance by state; planned is the sum of the others."""

    planned: int
    ok: int
    failed: int  # softly or not
    skipped: int
    running: int
    ready: int  # could run now
    waiting: int  # for another step
    queued: int  # to run again, perhaps after a delay
    soft_failed: int = 0  # of those that failed

    @property
    def missing(self) -> int:
        return self.planned - self.ok - self.failed - self.skipped


def shown_limit(max_failures: float) -> str:
    """ "12", "5%"."""
    is_share = 0 < max_failures < 1
    return f"{100 * max_failures:.3g}%" if is_share else f"{max_failures:g}"


class _Group:
    """An `all` entry of one target: satisfied when every source has ended completely."""

    __slots__ = ("name", "num_open", "sources", "target")

    def __init__(self, target: _State, name: str) -> None:
        self.target, self.name = target, name
        self.sources: list[_State] = []
        self.num_open = 0

    def passes(self) -> bool:
        """Whether anything of the whole group may flow downstream."""
        if not any(source.spec.num_tasks for source in self.sources):
            return True
        return any(s.num_passing for s in self.sources)


@dataclass(slots=True)
class _State:
    """One step instance while the study runs."""

    spec: StepInstance
    rank: tuple[int, int, int]  # the smallest runs first
    sizer: ChunkSizer
    tasks: RunMap
    num: dict[int, int]  # tasks per state
    cursor: int = 0  # no task below it is ready
    requeue: deque[Chunk] = field(default_factory=deque)
    is_active: bool = False  # it has an entry in the scheduler's heap
    num_open_groups: int = 0
    groups: list[_Group] = field(default_factory=list)
    same_sources: list[_State] = field(default_factory=list)
    same_targets: list[_State] = field(default_factory=list)
    block_sources: list[_State] = field(default_factory=list)
    block_targets: list[_State] = field(default_factory=list)
    member_of: list[_Group] = field(default_factory=list)

    @property
    def continues(self) -> bool:
        return self.spec.on_failure == "continue"

    @property
    def passing(self) -> tuple[int, ...]:
        """How a task has to end for what depends on it to run."""
        return (OK, SOFT_FAILED, FAILED) if self.continues else (OK, SOFT_FAILED)

    @property
    def num_passing(self) -> int:
        return sum(self.num[state] for state in self.passing)

    @property
    def num_failed(self) -> int:
        return self.num[FAILED] + self.num[SOFT_FAILED]

    @property
    def is_ended(self) -> bool:
        return self.num[OK] + self.num_failed + self.num[SKIPPED] == self.spec.num_tasks

    @property
    def num_to_hand_out(self) -> int:
        return self.num[READY] + self.num[WAITING]

    def move(self, lo: int, hi: int, state: int) -> None:
        """Put [lo, hi) into `state` and keep the counts."""
        for a, b, old in self.tasks.runs(lo, hi):
            self.num[old] -= b - a
        self.num[state] += hi - lo
        self.tasks.set(lo, hi, state)
        if state == READY and lo < self.cursor:
            self.cursor = lo


class Scheduler:
    """The run of one plan in memory, from the outcomes that the ledger holds to the end.

    Call `take` for work, and `finished`, `lost` or `give_back` once for every chunk that it returned. After
    each of these, and after construction, write `verdicts` and `memories` into the ledger. `first_attempt` must
    exceed every attempt in the ledger, so that what runs now outranks what is recorded. Leases are named after
    `name`; schedulers that follow each other have different ones.
    """

    def __init__(
        self,
        plan: Plan,
        outcomes: Mapping[str, RunMap],
        *,
        num_workers: int,
        target_s: float = TARGET_S,
        first_attempt: int = 1,
        name: str = "",
    ) -> None:
        self.plan = plan
        self.num_workers = num_workers
        self.target_s, self.least_s = target_s, LEAST_S  # of work per chunk
        self.first_attempt = first_attempt
        self.stop_reason = ""
        self.stop_now = False  # running tasks are to be interrupted, too
        self._name = name
        self._leases: dict[str, Chunk] = {}  # what is handed out, by lease
        self._num_leases = 0  # ever; makes the names
        self._deferred: list[tuple[float, int, Chunk]] = []
        self._num_deferred = 0  # ever; breaks ties
        # of instance, task, whether by infrastructure: the leases
        self._deaths: dict[tuple[str, int, bool], set[str]] = {}
        self._verdicts: list[Verdict] = []
        self._memories: list[Deferral | Death] = []
        self._active: dict[str, list[tuple[tuple[int, int, int], str]]] = {}  # by queue, heaps
        self._changed: deque[tuple[_State, int, int]] = deque()
        self._ended: set[str] = set()  # instances whose end has been told to their targets
        self._states = _build_states(plan, outcomes)
        for state in self._states.values():
            self._start(state)
        self._propagate()

    # ------------------------------------------------- what an earlier one has left

    def adopt(self, chunk: Chunk) -> bool:
        """A chunk that an earlier scheduler of this run has handed out, and that has a lease.

        What of it has ended meanwhile does not run. False, and nothing changes, if something of it could not run now.
        """
        state = self._state(chunk.instance)
        pieces: list[Range] = []
        for a, b in pieces_of(chunk):
            if not 0 <= a < b <= state.spec.num_tasks:
                return False
            if state.tasks.ranges((WAITING, QUEUED, RUNNING), a, b):
                return False
            pieces += state.tasks.ranges((READY,), a, b)
        for a, b in pieces:
            state.move(a, b, RUNNING)
        edges = [chunk.lo, *(edge for piece in pieces for edge in piece), chunk.hi]
        holes = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]
        self._leases[chunk.lease] = replace(chunk, holes=tuple(holes))
        state.sizer.size = max(state.sizer.size, min(num_tasks(chunk), state.sizer.limit))
        return True

    def remember(self, memories: Iterable[Deferral | Death]) -> None:
        """What earlier schedulers of this run knew, in that order. Call it after the last `adopt`."""
        later: dict[str, RunMap] = {}
        deferrals: list[Deferral] = []
        for memory in memories:
            if isinstance(memory, Death):
                self._count_death(memory)
                continue
            state = self._state(memory.chunk.instance)
            last = later.setdefault(state.spec.id, RunMap(state.spec.num_tasks, -1))
            for a, b in pieces_of(memory.chunk):
                last.set(a, b, len(deferrals))  # a later one outranks it
            deferrals.append(memory)
        for id, last in later.items():
            state = self._states[id]
            ready: dict[int, list[Range]] = {}
            for a, b, number in last.runs():
                if number >= 0:
                    ready.setdefault(number, []).extend(state.tasks.ranges((READY,), a, b))
            for number, pieces in sorted(ready.items()):
                if pieces:
                    chunk = replace(
                        _part(deferrals[number].chunk, pieces), attempt=self.first_attempt, lease=""
                    )
                    self._push_deferred(state, chunk, deferrals[number].not_before)

    # ---------------------------------------------------------------- events

    def take(self, now: float, queue: str | None = None) -> Chunk | None:
        """The next chunk to run (from a queue), or None when nothing is ready or the study stops."""
        if self.stop_reason:
            return None
        while self._deferred and self._deferred[0][0] <= now:
            chunk = heapq.heappop(self._deferred)[2]
            self._requeue(self._states[chunk.instance], chunk)
        heaps = list(self._active.values()) if queue is None else [self._active.get(queue, [])]
        while heap := min((h for h in heaps if h), default=None):
            state = self._states[heap[0][1]]
            taken = self._take_from(state)
            if taken is not None:
                return taken
            heapq.heappop(heap)
            state.is_active = False
        return None

    def finished(self, result: ChunkResult, now: float) -> bool:
        """A worker has ended a chunk; tasks it does not report are run again. False: the lease is not held."""
        chunk = self._release(result.chunk)
        if chunk is None:
            return False
        state = self._states[chunk.instance]
        self._settle(state, chunk, result.runs)
        for later in result.deferred:
            self._defer(state, chunk, later.chunk, now + later.delay_s)
        again = self._unsettled(state, chunk)
        for rest in again:
            self._requeue(state, replace(rest, attempt=chunk.attempt + 1))
        if not (again or chunk.isolate):
            state.sizer.learn(num_tasks(result.chunk), result.busy_s, self.target_s)
        if result.stop == "hard_fail":
            note = f": {result.note}" if result.note else ""
            self.stop(f"a task of step '{state.spec.id}' failed hard{note}", now=True)
        elif _has_failures(result.chunk, result.runs):
            self._check_failures(state, result.note)
        self._propagate()
        return True

    def lost(
        self,
        chunk: Chunk,
        done: Iterable[Run],
        *,
        signal: str = "",
        infrastructure: bool = False,
    ) -> bool:
        """The chunk's worker is gone; `done` is what it left in the ledger for this attempt.

        What it did not end is split in halves, down to single tasks. A task that alone kills its worker
        `crash_limit` times has failed; with `infrastructure`, the worker was not killed by its tasks, and the limit
        is LOSS_LIMIT. False: the lease is not held.
        """
        held = self._release(chunk)
        if held is None:
            return False
        state, done = self._states[held.instance], list(done)
        self._settle(state, held, done)
        if _has_failures(chunk, done):
            self._check_failures(state, "")
        for rest in self._unsettled(state, held):
            if num_tasks(rest) == 1:
                self._lost_alone(state, replace(rest, lease=chunk.lease), signal, infrastructure)
                continue
            for half in halves(rest):
                self._requeue(state, replace(half, attempt=held.attempt + 1))
        self._propagate()
        return True

    def give_back(self, chunk: Chunk) -> bool:
        """The chunk was not started; it waits again as it was. False: the lease is not held."""
        held = self._release(chunk)
        if held is None:
            return False
        if num_tasks(held):  # not one that had ended when it was adopted
            self._requeue(self._states[held.instance], held)
        return True

    def fail(self, instances: Collection[str], cause: str) -> list[Chunk]:
        """End every task of these step instances as failed that has not ended; returns the chunks that ran."""
        chosen = [self._state(id) for id in instances]
        void = [chunk for chunk in self._leases.values() if chunk.instance in instances]
        again = [c for s in chosen for c in s.requeue] + [
            c for _, _, c in self._deferred if c.instance in instances
        ]
        attempts = dict.fromkeys(
            instances, self.first_attempt
        )  # they outrank what their workers may have written
        for chunk in (*void, *again):
            attempts[chunk.instance] = max(attempts[chunk.instance], chunk.attempt + 1)
        for chunk in void:
            del self._leases[chunk.lease]
        self._deferred = [entry for entry in self._deferred if entry[2].instance not in instances]
        heapq.heapify(self._deferred)
        for state in chosen:
            state.requeue.clear()
            for a, b in state.tasks.ranges(NOT_ENDED):
                self._judge(state, a, b, Outcome.FAILED, cause, attempts[state.spec.id])
        self._propagate()
        return void

    def stop(self, reason: str, *, now: bool = False) -> None:
        """Hand out nothing more; with `now`, running tasks are to be interrupted. The first reason stays."""
        self.stop_reason = self.stop_reason or reason
        self.stop_now = self.stop_now or now

    # --------------------------------------------------------------- answers

    def verdicts(self) -> list[Verdict]:
        """Outcomes decided here since the last call, for the ledger."""
        out, self._verdicts = self._verdicts, []
        return out

    def memories(self) -> list[Deferral | Death]:
        """What another scheduler of this run would have to know beyond outcomes, since the last call."""
        out, self._memories = self._memories, []
        return out

    def next_wakeup(self) -> float | None:
        """When the earliest deferred chunk may run, if one waits."""
        return self._deferred[0][0] if self._deferred and not self.stop_reason else None

    def counts(self) -> dict[str, Counts]:
        """Tasks by state, per step instance."""
        return {
            id: Counts(
                planned=s.spec.num_tasks,
                ok=s.num[OK],
                failed=s.num_failed,
                soft_failed=s.num[SOFT_FAILED],
                skipped=s.num[SKIPPED],
                running=s.num[RUNNING],
                ready=s.num[READY],
                waiting=s.num[WAITING],
                queued=s.num[QUEUED],
            )
            for id, s in self._states.items()
        }

    @property
    def is_complete(self) -> bool:
        """Every task has an outcome."""
        return len(self._ended) == len(self._states)

    @property
    def num_running(self) -> int:
        """Chunks handed out and not ended."""
        return len(self._leases)

    def leases(self) -> set[str]:
        """Of everything that is handed out."""
        return set(self._leases)

    def held(self, lease: str) -> Chunk | None:
        """The chunk under this lease, if it is handed out."""
        return self._leases.get(lease)

    def tasks(self, instance: str) -> Iterator[Run]:
        """The states of all tasks, as sorted runs: an Outcome, WAITING, READY, QUEUED or RUNNING."""
        return self._state(instance).tasks.runs()

    def story(self, instance: str, task: int) -> str:
        """What is known about one task, for messages about bugs."""
        state = self._states[instance]
        chunks = [c for c in self._leases.values() if c.instance == instance and c.lo <= task < c.hi]
        return (
            f"task {task} of {instance} is {STATE_NAMES[state.tasks[task]]}; running chunks over it: {chunks}; "
            f"deaths: {len(self._deaths.get((instance, task, False), ()))}; open groups: {state.num_open_groups}"
        )

    # ------------------------------------------------------------- handing out

    def _state(self, instance: str) -> _State:
        try:
            return self._states[instance]
        except KeyError:
            raise ExecutionError(f"the plan has no step instance '{instance}'") from None

    def _take_from(self, state: _State) -> Chunk | None:
        if state.requeue:
            return self._hand_out(state, state.requeue.popleft())
        if state.num[READY]:
            return self._hand_out(state, self._cut(state))
        return None

    def _cut(self, state: _State) -> Chunk:
        """The next chunk from the ready tasks, in order; scattered tasks share a chunk with holes."""
        size = state.sizer.next_size(state.num_to_hand_out, self.num_workers, self.least_s)
        reach = max(MAX_SPARSE_SPAN, 4 * size)
        pieces: list[Range] = []
        num = 0
        for a, b, value in state.tasks.runs(state.cursor):
            if value != READY:
                continue
            if pieces and (len(pieces) == MAX_PIECES or a - pieces[0][0] >= reach):
                break
            b = min(b, a + size - num)
            pieces.append((a, b))
            num += b - a
            if num == size:
                break
        state.cursor = pieces[-1][1]
        chunk = chunk_of(pieces, instance=state.spec.id, attempt=self.first_attempt)
        if state.spec.kind is StepKind.AGGREGATE:
            chunk = replace(chunk, absent_rows=_absent_rows(state, chunk))
        return chunk

    def _hand_out(self, state: _State, chunk: Chunk) -> Chunk:
        for a, b in pieces_of(chunk):
            state.move(a, b, RUNNING)
        self._num_leases += 1
        leased = replace(chunk, lease=f"{self._name}{self._num_leases}")
        self._leases[leased.lease] = leased
        return leased

    def _release(self, chunk: Chunk) -> Chunk | None:
        """The chunk as it was handed out, without its lease; None if the lease is not held."""
        held = self._leases.pop(chunk.lease, None)
        return None if held is None else replace(held, lease="")

    def _requeue(self, state: _State, chunk: Chunk) -> None:
        for a, b in pieces_of(chunk):
            state.move(a, b, QUEUED)
        state.requeue.append(chunk)
        self._activate(state)

    def _defer(self, state: _State, held: Chunk, again: Chunk, not_before: float) -> None:
        """Tasks of a chunk that ask to be run again, without those that had ended when it was adopted."""
        pieces = [(a, b) for a, b, _ in clip([(a, b, 0) for a, b in pieces_of(again)], pieces_of(held))]
        if not pieces:
            return
        for a, b in pieces:
            self._expect_running(state, a, b)
        chunk = replace(_part(again, pieces), attempt=held.attempt + 1, lease="")
        self._push_deferred(state, chunk, not_before)
        self._memories.append(Deferral(chunk=chunk, not_before=not_before))

    def _push_deferred(self, state: _State, chunk: Chunk, not_before: float) -> None:
        for a, b in pieces_of(chunk):
            state.move(a, b, QUEUED)
        self._num_deferred += 1
        heapq.heappush(self._deferred, (not_before, self._num_deferred, chunk))

    def _activate(self, state: _State) -> None:
        if not state.is_active and (state.num[READY] or state.requeue):
            state.is_active = True
            heapq.heappush(self._active.setdefault(state.spec.queue, []), (state.rank, state.spec.id))

    # -------------------------------------------------------------- outcomes

    def _settle(self, state: _State, chunk: Chunk, runs: Iterable[Run]) -> None:
        """Take the outcomes inside the chunk."""
        for a, b, outcome in clip(runs, pieces_of(chunk)):
            if outcome not in ENDED:
                continue
            self._expect_running(state, a, b)
            state.move(a, b, outcome)
        self._note_change(state, chunk.lo, chunk.hi)

    def _expect_running(self, state: _State, lo: int, hi: int) -> None:
        for a, _, value in state.tasks.runs(lo, hi):
            if value != RUNNING:
                raise ExecutionError(
                    f"an outcome for a task that does not run: {self.story(state.spec.id, a)}"
                )

    def _unsettled(self, state: _State, chunk: Chunk) -> list[Chunk]:
        """What of the chunk is still running, as a chunk; empty when nothing is."""
        left = [r for a, b in pieces_of(chunk) for r in state.tasks.ranges((RUNNING,), a, b)]
        if not left:
            return []
        return [_part(chunk, left)]

    def _lost_alone(self, state: _State, chunk: Chunk, signal: str, infrastructure: bool) -> None:
        (task,) = chunk.task_ids()
        death = Death(instance=chunk.instance, task=task, infrastructure=infrastructure, lease=chunk.lease)
        self._memories.append(death)
        deaths = self._count_death(death)
        if deaths < (LOSS_LIMIT if infrastructure else state.spec.crash_limit):
            self._requeue(state, replace(chunk, attempt=chunk.attempt + 1, isolate=True, lease=""))
            return
        cause = cause_of_loss(deaths, signal, infrastructure)
        self._judge(state, task, task + 1, Outcome.FAILED, cause, chunk.attempt + 1)
        self._check_failures(state, cause)

    def _count_death(self, death: Death) -> int:
        leases = self._deaths.setdefault((death.instance, death.task, death.infrastructure), set())
        leases.add(death.lease)
        return len(leases)

    def _judge(self, state: _State, lo: int, hi: int, outcome: Outcome, cause: str, attempt: int) -> None:
        state.move(lo, hi, int(outcome))
        self._note_change(state, lo, hi)
        last = self._verdicts[-1] if self._verdicts else None
        new = Verdict(instance=state.spec.id, lo=lo, hi=hi, outcome=outcome, cause=cause, attempt=attempt)
        if last and last.hi == lo and replace(new, lo=last.lo) == replace(last, hi=hi):
            self._verdicts[-1] = replace(last, hi=hi)
        else:
            self._verdicts.append(new)

    # -------------------------------------------------------------- stopping

    def _check_failures(self, state: _State, note: str) -> None:
        """The canary and `max_failures`: what runs may end, nothing new starts.

        The canary looks for a step that cannot work at all; a task that chose to fail shows that its step does.
        """
        spec, num_failed = state.spec, state.num_failed
        because = f": {note}" if note else ""
        works = state.num[OK] or state.num[SOFT_FAILED]
        if spec.canary and spec.num_tasks > spec.canary <= num_failed and not works:
            self.stop(f"canary: the first {num_failed} tasks of step '{spec.id}' all failed{because}")
        if spec.max_failures is None:
            return
        limit = spec.max_failures * spec.num_tasks if spec.max_failures < 1 else spec.max_failures
        if num_failed > limit:
            self.stop(
                f"max_failures: {num_failed} of {spec.num_tasks} tasks of step '{spec.id}' failed, "
                f"{shown_limit(spec.max_failures)} are allowed{because}"
            )

    # --------------------------------------------------------------- readiness

    def _start(self, state: _State) -> None:
        """Bring what the ledger knows about one instance into force."""
        if state.is_ended:
            self._ended.add(state.spec.id)
            for group in state.member_of:
                group.num_open -= 1
                self._close(group)
        if not state.groups and state.num[WAITING]:
            self._evaluate(state, 0, state.spec.num_tasks)
        if state.num[OK] or state.num_failed or state.num[SKIPPED]:
            self._note_change(state, 0, state.spec.num_tasks)

    def _note_change(self, state: _State, lo: int, hi: int) -> None:
        """Tasks in [lo, hi) have ended; scattered ends of one instance become one event over their hull."""
        if self._changed and self._changed[-1][0] is state:
            _, a, b = self._changed.pop()
            lo, hi = min(a, lo), max(b, hi)
        self._changed.append((state, lo, hi))

    def _propagate(self) -> None:
        """Follow every change to what depends on it, and on."""
        while self._changed:
            state, lo, hi = self._changed.popleft()
            for target in state.same_targets:
                self._evaluate(target, lo, hi)
            for target in state.block_targets:
                for a, b in _shards_of(target, state, lo, hi):
                    self._evaluate(target, a, b)
            if state.is_ended and state.spec.id not in self._ended:
                self._ended.add(state.spec.id)
                for group in state.member_of:
                    group.num_open -= 1
                    self._close(group)

    def _close(self, group: _Group) -> None:
        """A source of the group has ended; the last one decides."""
        if group.num_open:
            return
        target = group.target
        target.num_open_groups -= 1
        if not group.passes():
            cause = f"no task of '{group.name}', which it depends on, ended ok"
            for a, b in target.tasks.ranges((WAITING,)):
                self._judge(target, a, b, Outcome.SKIPPED, cause, self.first_attempt)
        elif target.num_open_groups == 0:
            self._evaluate(target, 0, target.spec.num_tasks)

    def _evaluate(self, target: _State, lo: int, hi: int) -> None:
        """Move waiting tasks in [lo, hi) to ready or skipped, as their sources say."""
        find = _ready_shards if target.block_sources else _ready_tasks
        for a, b, culprit in list(find(target, lo, hi)):
            if culprit:
                cause = f"a task of '{culprit}', which it depends on, did not end ok"
                self._judge(target, a, b, Outcome.SKIPPED, cause, self.first_attempt)
            elif target.num_open_groups == 0:
                target.move(a, b, READY)
        self._activate(target)

    # -------------------------------------------------------------- invariants

    def check(self) -> None:
        """Assert the invariants; every test calls it after every event."""
        held: dict[tuple[str, int], list[Range]] = {}
        queued = [c for s in self._states.values() for c in s.requeue] + [c for _, _, c in self._deferred]
        for kind, chunks in ((RUNNING, self._leases.values()), (QUEUED, queued)):
            for chunk in chunks:
                held.setdefault((chunk.instance, kind), []).extend(pieces_of(chunk))
        for id, state in self._states.items():
            real = state.tasks.counts()
            assert {k: v for k, v in state.num.items() if v} == real, f"{id}: counts {state.num} but {real}"
            assert state.is_ended == (id in self._ended), f"{id}: its end is not told"
            assert all(a >= state.cursor for a, _ in state.tasks.ranges((READY,))), (
                f"{id}: ready below the cursor"
            )
            for kind in (RUNNING, QUEUED):
                have = merged(held.get((id, kind), []))
                assert have == state.tasks.ranges((kind,)), f"{id}: {STATE_NAMES[kind]} {have}"
            self._check_dependencies(state)

    def _check_dependencies(self, state: _State) -> None:
        id, size = state.spec.id, state.spec.num_tasks
        started = state.tasks.ranges((READY, QUEUED, RUNNING))
        closed = all(s.is_ended for g in state.groups for s in g.sources)
        assert closed == (state.num_open_groups == 0), f"{id}: {state.num_open_groups} groups are open"
        assert closed or not started, f"{id}: started before what it depends on ended"
        for a, b in started:
            for source in state.same_sources:
                assert not _blocked(source, a, b), f"{id}: [{a}, {b}) started before {source.spec.id}"
            if state.block_sources:
                assert not _open_shards(state, a, b), f"{id}: a shard started before its rows ended"
        find = _ready_shards if state.block_sources else _ready_tasks
        if closed and not self._changed:
            assert not list(find(state, 0, size)), f"{id}: waits for nothing"


def _has_failures(chunk: Chunk, runs: Iterable[Run]) -> bool:
    """Whether tasks of it failed; an adopted chunk may not hold them any more, but nobody has looked at them yet."""
    return any(outcome in FAILURES for _, _, outcome in clip(runs, pieces_of(chunk)))


def _part(chunk: Chunk, pieces: list[Range]) -> Chunk:
    """Only these tasks of it."""
    shape = chunk_of(pieces, instance=chunk.instance, attempt=chunk.attempt)
    return replace(chunk, lo=shape.lo, hi=shape.hi, holes=shape.holes)


# -------------------------------------------------------------------- building


def _build_states(plan: Plan, outcomes: Mapping[str, RunMap]) -> dict[str, _State]:
    states: dict[str, _State] = {}
    depth: dict[str, int] = {}
    for index, spec in enumerate(plan.instances):
        depth[spec.id] = 1 + max((depth[e.source] for e in spec.edges), default=-1)
        gathers = spec.kind in (StepKind.AGGREGATE, StepKind.MANIFEST)
        tasks, num = _tasks_of(spec, outcomes.get(spec.id))
        states[spec.id] = state = _State(
            spec=spec,
            rank=(-int(gathers), -depth[spec.id], index),
            sizer=ChunkSizer(spec),
            tasks=tasks,
            num=num,
            cursor=spec.num_tasks,
        )
        _connect(state, states)
    return states


def _tasks_of(spec: StepInstance, outcomes: RunMap | None) -> tuple[RunMap, dict[int, int]]:
    """The state of every task as the ledger has it; interrupted tasks wait as if never started."""
    tasks = RunMap(spec.num_tasks, WAITING)
    if outcomes is not None:
        if outcomes.size != spec.num_tasks:
            raise ExecutionError(
                f"the ledger has {outcomes.size} tasks of {spec.id}, the plan {spec.num_tasks}"
            )
        for a, b, value in outcomes.runs():
            if value in ENDED:
                tasks.set(a, b, value)
    return tasks, dict.fromkeys(STATE_NAMES, 0) | tasks.counts()


def _connect(target: _State, states: dict[str, _State]) -> None:
    groups: dict[str, _Group] = {}
    for edge in target.spec.edges:
        source = states[edge.source]
        if edge.kind == "same":
            if source.spec.num_tasks != target.spec.num_tasks:
                raise ExecutionError(f"{target.spec.id} and {edge.source} differ in their number of tasks")
            target.same_sources.append(source)
            source.same_targets.append(target)
        elif edge.kind == "block":
            source.block_targets.append(target)
        else:
            group = groups.setdefault(edge.group, _Group(target, edge.group))
            group.sources.append(source)
            group.num_open += 1
            source.member_of.append(group)
    target.groups = list(groups.values())
    target.num_open_groups = len(groups)
    if any(edge.kind == "block" for edge in target.spec.edges) and target.spec.aggregate:
        target.block_sources = [states[id] for id in target.spec.aggregate.sources]


# ------------------------------------------------------------------- readiness


def _blocked(source: _State, lo: int, hi: int) -> list[Range]:
    """Tasks of [lo, hi) that what depends on them may not follow (yet)."""
    return source.tasks.ranges(set(STATE_NAMES) - set(source.passing), lo, hi)


def _ready_tasks(target: _State, lo: int, hi: int) -> Iterator[tuple[int, int, str]]:
    """Waiting tasks that `same` sources decide: (lo, hi, "" or the step that they are skipped for)."""
    for start, end in target.tasks.ranges((WAITING,), lo, hi):
        at = start
        while at < end:
            stop, culprit, is_open = end, "", False
            for source in target.same_sources:
                _, until, value = next(source.tasks.runs(at, end))
                stop = min(stop, until)
                if value == SKIPPED or (value == FAILED and not source.continues):
                    culprit = culprit or source.spec.id
                elif value not in ENDED:
                    is_open = True
            if culprit or not (is_open or target.num_open_groups):
                yield at, stop, culprit
            at = stop


def _ready_shards(target: _State, lo: int, hi: int) -> Iterator[tuple[int, int, str]]:
    """Waiting shards whose rows have all ended, if nothing else holds the target."""
    if target.num_open_groups:
        return
    closed: list[Range] = []
    at = lo
    for x, y in _open_shards(target, lo, hi):
        if x > at:
            closed.append((at, x))
        at = y
    if at < hi:
        closed.append((at, hi))
    for a, b, _ in clip([(a, b, 0) for a, b in target.tasks.ranges((WAITING,), lo, hi)], closed):
        yield a, b, ""


def _open_shards(target: _State, lo: int, hi: int) -> list[Range]:
    """Shards in [lo, hi) with a row that has not ended; sorted, merged."""
    size = _rows_per_shard(target)
    out: list[Range] = []
    for offset, source, a, b in _rows(target, lo * size, hi * size):
        for x, y in source.tasks.ranges(NOT_ENDED, a, b):
            first, last = max(lo, (offset + x) // size), min(hi, (offset + y - 1) // size + 1)
            if out and first <= out[-1][1]:
                out[-1] = (out[-1][0], max(last, out[-1][1]))
            else:
                out.append((first, last))
    return out


def _rows_per_shard(target: _State) -> int:
    assert target.spec.aggregate is not None
    return target.spec.aggregate.samples_per_shard


def _rows(target: _State, lo: int, hi: int) -> Iterator[tuple[int, _State, int, int]]:
    """The sources of rows [lo, hi): (row of the source's task 0, source, first task, last task + 1)."""
    offset = 0
    for source in target.block_sources:
        n = source.spec.num_tasks
        a, b = max(lo - offset, 0), min(hi - offset, n)
        if a < b:
            yield offset, source, a, b
        offset += n


def _shards_of(target: _State, source: _State, lo: int, hi: int) -> Iterator[Range]:
    """Shards that hold rows of tasks [lo, hi) of the source."""
    size, offset = _rows_per_shard(target), 0
    for other in target.block_sources:
        if other is source:
            yield (offset + lo) // size, min(target.spec.num_tasks, (offset + hi - 1) // size + 1)
        offset += other.spec.num_tasks


def _absent_rows(target: _State, chunk: Chunk) -> tuple[Range, ...]:
    size = _rows_per_shard(target)
    out = [
        (offset + x, offset + y)
        for offset, source, a, b in _rows(target, chunk.lo * size, chunk.hi * size)
        for x, y in source.tasks.ranges((*FAILURES, SKIPPED), a, b)
    ]
    return tuple(merged(out))


# --------------------------------------------------------------------- wording


def cause_of_loss(deaths: int, signal: str, infrastructure: bool) -> str:
    """Why a task failed that no worker survived."""
    times = "once" if deaths == 1 else f"{deaths} times"
    because = f" ({signal})" if signal else ""
    return (
        f"its worker was lost {times}{because}" if infrastructure else f"killed its worker {times}{because}"
    )
