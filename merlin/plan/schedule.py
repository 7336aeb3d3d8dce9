"""Decides which chunk runs next: events in, chunks and outcomes out.

The scheduler knows no clock, disk or process: time is an argument, the executor carries the decisions out and writes
what is decided here into the ledger. The states of tasks are in `task_states`, which of them may run in `readiness`,
what follows from an end in `consequences`, what waits for a worker in `backlog`, how a chunk is made in `cutting`,
the rules about failures in `failure_limits`, and what the next scheduler has to know in `memories`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf

from msgspec.structs import replace

from merlin.base.ranges import Range
from merlin.errors import ExecutionError
from merlin.plan.backlog import Backlog
from merlin.plan.chunking import LEAST_S
from merlin.plan.consequences import Consequences, DecidedOutcome
from merlin.plan.cutting import cut
from merlin.plan.durations import Spread
from merlin.plan.failure_limits import cause_of_loss, cause_of_overrun, has_failures, reason_to_stop
from merlin.plan.fit import Need, Room
from merlin.plan.memories import Death, Deferral, Memories, still_ready
from merlin.plan.open_work import needs, open_work
from merlin.plan.pieces import Run, clip, halves, narrowed, num_tasks, part_of, pieces_of
from merlin.plan.plan import Plan
from merlin.plan.runs import RunMap
from merlin.plan.task_states import (
    NOT_ENDED,
    QUEUED,
    READY,
    RUNNING,
    STATE_NAMES,
    WAITING,
    InstanceState,
    TaskCounts,
    build_states,
)
from merlin.plan.tasks import ENDED, Chunk, ChunkResult, Outcome

TARGET_S = 1.5


class Scheduler:
    """The run of one plan in memory, from the outcomes that the ledger holds to the end.

    Call `take` for work, and `finished`, `lost` or `give_back` once for every chunk that it returned. After
    each of these, and after construction, write `decided_outcomes` and `memories` into the ledger. `first_attempt` must
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
        collect_only: Mapping[str, RunMap] | None = None,
    ) -> None:
        self.plan = plan
        self.num_workers = num_workers
        self.target_s, self.least_s = target_s, LEAST_S  # of work per chunk
        self.first_attempt = first_attempt
        self.stop_reason = ""
        self.stop_now = False  # running tasks are to be interrupted, too
        self.avoid: tuple[str, ...] = ()  # nodes that get nothing of what is handed out
        self.is_canary_spared = False  # a node may be to blame for failures, and not the step
        self._name = name
        self._leases: dict[str, Chunk] = {}  # what is handed out, by lease
        self._num_leases = 0  # ever; makes the names
        self._memories = Memories()
        self._states = build_states(plan, outcomes, collect_only)
        self._backlog = Backlog(self._states)
        self._consequences = Consequences(self._states, self._backlog, first_attempt)

    # ------------------------------------------------- what an earlier one has left

    def adopt(self, chunk: Chunk) -> bool:
        """Adopt a chunk that an earlier scheduler of this run has handed out under a lease.

        Its tasks that have ended meanwhile do not run. Returns False, and changes nothing, if one could not run now.
        """
        state = self._state(chunk.instance)
        pieces: list[Range] = []
        for a, b in pieces_of(chunk):
            if not 0 <= a < b <= state.instance.num_tasks:
                return False
            if state.tasks.ranges((WAITING, QUEUED, RUNNING), a, b):
                return False
            pieces += state.tasks.ranges((READY,), a, b)
        for a, b in pieces:
            state.move(a, b, RUNNING)
        self._leases[chunk.lease] = narrowed(chunk, pieces)
        state.sizer.size = max(state.sizer.size, min(num_tasks(chunk), state.sizer.limit))
        return True

    def know_durations(self, known: Mapping[str, Spread]) -> None:
        """Take in how long tasks have taken so far, by step."""
        durations = {state.instance.step: state.durations for state in self._states.values()}
        for step in known.keys() & durations.keys():
            durations[step].learn(known[step])

    def remember(self, memories: Iterable[Deferral | Death]) -> None:
        """Take in what earlier schedulers of this run knew, in that order. Call it after the last `adopt`."""
        deferrals: list[tuple[InstanceState, Deferral]] = []
        for memory in memories:
            if isinstance(memory, Death):
                self._memories.recall(memory)
            else:
                deferrals.append((self._state(memory.chunk.instance), memory))
        for deferral, pieces in still_ready(deferrals):
            chunk = replace(part_of(deferral.chunk, pieces), attempt=self.first_attempt, lease="")
            self._backlog.defer(chunk, deferral.not_before)

    # ---------------------------------------------------------------- events

    def take(
        self, now: float, queue: str | None = None, *, left_s: float = inf, room: Room | None = None
    ) -> Chunk | None:
        """The next chunk to run (from a queue), or None when nothing is ready or the study stops.

        Chunks of steps whose tasks need longer than `left_s` are not returned, because they could not end. With `room`,
        the chunk fits there: the caller gives it what its step needs before it asks again.
        """

        def may_start(state: InstanceState) -> bool:
            return left_s == inf or state.need_s <= left_s

        state = None if self.stop_reason else self._backlog.first(now, queue, may_start, room)
        return None if state is None else self._hand_out(state)

    def take_for_job(self, now: float, step: str) -> Chunk | None:
        """The next chunk of a step whose chunks become batch jobs (see `job_policy`); `take` never returns those."""
        state = None if self.stop_reason else self._backlog.first_for_job(now, step)
        return None if state is None else self._hand_out(state)

    def finished(self, result: ChunkResult, now: float) -> bool:
        """Handle a chunk that a worker has ended; tasks without an outcome run again. False: the lease is not held."""
        chunk = self._release(result.chunk)
        if chunk is None:
            return False
        state = self._states[chunk.instance]
        if not chunk.collect_only:
            state.durations.learn(result.spread, result.cut_off_s)
        self._settle(state, chunk, result.runs)
        for later in result.deferred:
            self._defer(state, chunk, later.chunk, now + later.delay_s)
        again = self._unsettled(state, chunk)
        for rest in again:
            self._backlog.put(replace(rest, attempt=chunk.attempt + 1))
        if not (again or chunk.isolate or chunk.collect_only):
            state.sizer.learn(num_tasks(result.chunk), result.busy_s, self.target_s)
        if result.stop == "hard_fail":
            note = f": {result.note}" if result.note else ""
            self.stop(f"a task of step '{state.instance.id}' failed hard{note}", now=True)
        elif has_failures(result.chunk, result.runs):
            self._check_failures(state, result.note)
        self._consequences.propagate()
        return True

    def lost(
        self,
        chunk: Chunk,
        done: Iterable[Run],
        *,
        signal: str = "",
        infrastructure: bool = False,
        tail: str = "",
    ) -> bool:
        """Handle a chunk whose worker is gone; `done` is what it left in the ledger, `tail` what it said as it died.

        The rest is split in halves, down to single tasks. A task that alone kills its worker `crash_limit` times has
        failed; with `infrastructure`, no task killed it, and the limit is LOSS_LIMIT. False: the lease is not held.
        """
        held = self._release(chunk)
        if held is None:
            return False
        state = self._settle_done(chunk, held, list(done))
        for rest in self._unsettled(state, held):
            if num_tasks(rest) == 1:
                self._lost_alone(state, replace(rest, lease=chunk.lease), signal, infrastructure, tail)
                continue
            for half in halves(rest):
                self._backlog.put(replace(half, attempt=held.attempt + 1))
        self._consequences.propagate()
        return True

    def overran(self, chunk: Chunk, done: Iterable[Run], running: Collection[int], walltime: str) -> bool:
        """Handle a chunk whose job ran out of walltime; `done` is what is in the ledger, `running` was cut off.

        The rest runs again in one chunk. A task that was cut off `crash_limit` times has failed. False: the lease is
        not held.
        """
        held = self._release(chunk)
        if held is None:
            return False
        state = self._settle_done(chunk, held, list(done))
        for task in sorted(running):
            if state.tasks[task] == RUNNING and held.lo <= task < held.hi:
                self._cut_off(state, task, replace(held, lease=chunk.lease), walltime)
        for rest in self._unsettled(state, held):
            self._backlog.put(replace(rest, attempt=held.attempt + 1))
        self._consequences.propagate()
        return True

    def give_back(self, chunk: Chunk) -> bool:
        """Take back a chunk that was not started; it waits again as before. False: the lease is not held."""
        held = self._release(chunk)
        if held is None:
            return False
        if num_tasks(held):  # not a chunk whose tasks had all ended when it was adopted
            self._backlog.put(held)
        return True

    def fail(self, instances: Collection[str], cause: str) -> list[Chunk]:
        """End all unfinished tasks of these step instances as failed; returns the chunks that ran."""
        chosen = [self._state(id) for id in instances]
        void = [chunk for chunk in self._leases.values() if chunk.instance in instances]
        again = self._backlog.drop(instances)
        # outcomes from here outrank what the workers of these chunks may have written
        attempts = dict.fromkeys(instances, self.first_attempt)
        for chunk in (*void, *again):
            attempts[chunk.instance] = max(attempts[chunk.instance], chunk.attempt + 1)
        for chunk in void:
            del self._leases[chunk.lease]
        for state in chosen:
            for a, b in state.tasks.ranges(NOT_ENDED):
                self._consequences.decide(state, a, b, Outcome.FAILED, cause, attempts[state.instance.id])
        self._consequences.propagate()
        return void

    def stop(self, reason: str, *, now: bool = False) -> None:
        """Hand out nothing more; with `now`, running tasks are to be interrupted. The first reason stays."""
        self.stop_reason = self.stop_reason or reason
        self.stop_now = self.stop_now or now

    # --------------------------------------------------------------- answers

    def decided_outcomes(self) -> list[DecidedOutcome]:
        """Outcomes decided here since the last call, for the ledger."""
        return self._consequences.decided_outcomes()

    def memories(self) -> list[Deferral | Death]:
        """What another scheduler of this run would have to know beyond outcomes, as far as new since the last call."""
        return self._memories.unwritten()

    def next_wakeup(self) -> float | None:
        """When the earliest deferred chunk may run, if one waits."""
        return None if self.stop_reason else self._backlog.next_wakeup()

    def counts(self) -> dict[str, TaskCounts]:
        """Tasks by state, per step instance."""
        return {id: state.counts() for id, state in self._states.items()}

    @property
    def is_complete(self) -> bool:
        """Every task has an outcome."""
        return len(self._consequences.ended) == len(self._states)

    @property
    def num_running(self) -> int:
        """Chunks handed out and not ended."""
        return len(self._leases)

    def leases(self) -> set[str]:
        """The leases of all chunks that are handed out."""
        return set(self._leases)

    def held(self, lease: str) -> Chunk | None:
        """The chunk under this lease, if it is handed out."""
        return self._leases.get(lease)

    def tasks(self, instance: str) -> Iterator[Run]:
        """The states of all tasks, as sorted runs: an Outcome, WAITING, READY, QUEUED or RUNNING."""
        return self._state(instance).tasks.runs()

    def needs(self, queue: str | None = None) -> dict[str, float]:
        """What workers could run now (from a queue): by step, the seconds that a task may take, 0 if not known."""
        return needs(self._states.values(), queue)

    def open_work(self) -> dict[tuple[str, Need], tuple[int, float]]:
        """By queue and need: tasks that workers could run together, now or later, and the least time for one."""
        return open_work(self._states.values())

    def story(self, instance: str, task: int) -> str:
        """What is known about one task, for messages about bugs."""
        state = self._states[instance]
        chunks = [c for c in self._leases.values() if c.instance == instance and c.lo <= task < c.hi]
        num_deaths = self._memories.num_deaths(instance, task, infrastructure=False)
        return (
            f"task {task} of {instance} is {STATE_NAMES[state.tasks[task]]}; running chunks over it: {chunks}; "
            f"deaths: {num_deaths}; open groups: {state.num_open_groups}"
        )

    # ------------------------------------------------------------- handing out

    def _state(self, instance: str) -> InstanceState:
        try:
            return self._states[instance]
        except KeyError:
            raise ExecutionError(f"the plan has no step instance '{instance}'") from None

    def _hand_out(self, state: InstanceState) -> Chunk:
        """The next chunk of this step instance, under a new lease; what runs again comes first."""
        if state.requeue:
            chunk = state.requeue.popleft()
        else:
            num_left = state.num[READY] + state.num[WAITING]
            size = state.sizer.next_size(num_left, self.num_workers, self.least_s, state.num_elsewhere)
            chunk = cut(state, size, self.first_attempt)
        for a, b in pieces_of(chunk):
            state.move(a, b, RUNNING)
        self._num_leases += 1
        leased = replace(
            chunk, lease=f"{self._name}{self._num_leases}", need_s=state.need_s, avoid=self.avoid
        )
        self._leases[leased.lease] = leased
        return leased

    def _release(self, chunk: Chunk) -> Chunk | None:
        """The chunk as it was handed out, without its lease; None if the lease is not held."""
        held = self._leases.pop(chunk.lease, None)
        return None if held is None else replace(held, lease="")

    def _defer(self, state: InstanceState, held: Chunk, again: Chunk, not_before: float) -> None:
        """Tasks of a chunk that ask to be run again, without those that had ended when it was adopted."""
        pieces = [(a, b) for a, b, _ in clip([(a, b, 0) for a, b in pieces_of(again)], pieces_of(held))]
        if not pieces:
            return
        for a, b in pieces:
            self._expect_running(state, a, b)
        chunk = replace(part_of(again, pieces), attempt=held.attempt + 1, lease="")
        self._backlog.defer(chunk, not_before)
        self._memories.add(Deferral(chunk=chunk, not_before=not_before))

    # -------------------------------------------------------------- outcomes

    def _settle(self, state: InstanceState, chunk: Chunk, runs: Iterable[Run]) -> None:
        """Take the outcomes inside the chunk."""
        for a, b, outcome in clip(runs, pieces_of(chunk)):
            if outcome not in ENDED:
                continue
            self._expect_running(state, a, b)
            state.move(a, b, outcome)
        self._consequences.note_change(state, chunk.lo, chunk.hi)

    def _settle_done(self, chunk: Chunk, held: Chunk, done: list[Run]) -> InstanceState:
        """Take the outcomes that the ledger has of a chunk whose worker did not finish it."""
        state = self._states[held.instance]
        self._settle(state, held, done)
        if has_failures(chunk, done):
            self._check_failures(state, "")
        return state

    def _expect_running(self, state: InstanceState, lo: int, hi: int) -> None:
        for a, _, value in state.tasks.runs(lo, hi):
            if value != RUNNING:
                raise ExecutionError(
                    f"an outcome for a task that does not run: {self.story(state.instance.id, a)}"
                )

    def _unsettled(self, state: InstanceState, chunk: Chunk) -> list[Chunk]:
        """The tasks of the chunk that are still running, as one chunk; empty if there are none."""
        left = [r for a, b in pieces_of(chunk) for r in state.tasks.ranges((RUNNING,), a, b)]
        return [part_of(chunk, left)] if left else []

    def _lost_alone(
        self, state: InstanceState, chunk: Chunk, signal: str, infrastructure: bool, tail: str
    ) -> None:
        (task,) = chunk.task_ids()
        times = self._count_death(chunk, task, infrastructure=infrastructure)
        cause = cause_of_loss(state.instance, times, signal, infrastructure)
        if not cause:
            self._backlog.put(replace(chunk, attempt=chunk.attempt + 1, isolate=True, lease=""))
            return
        self._consequences.decide(state, task, task + 1, Outcome.FAILED, cause, chunk.attempt + 1, tail)
        self._check_failures(state, cause)

    def _cut_off(self, state: InstanceState, task: int, chunk: Chunk, walltime: str) -> None:
        times = self._count_death(chunk, task, infrastructure=False)
        if times >= state.instance.crash_limit:
            cause = cause_of_overrun(times, walltime)
            self._consequences.decide(state, task, task + 1, Outcome.FAILED, cause, chunk.attempt + 1)
            self._check_failures(state, cause)

    def _count_death(self, chunk: Chunk, task: int, *, infrastructure: bool) -> int:
        """Record one more loss of the task's worker; returns how often that has happened, this time included."""
        death = Death(instance=chunk.instance, task=task, infrastructure=infrastructure, lease=chunk.lease)
        self._memories.add(death)
        return self._memories.num_deaths(chunk.instance, task, infrastructure=infrastructure)

    def _check_failures(self, state: InstanceState, note: str) -> None:
        if reason := reason_to_stop(state, note, is_canary_spared=self.is_canary_spared):
            self.stop(reason)
