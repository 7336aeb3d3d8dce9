"""What waits to be handed out: step instances by queue and rank, chunks that run again, and those with a delay."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping

from merlin.plan.fit import Need, Room
from merlin.plan.pieces import pieces_of
from merlin.plan.task_states import QUEUED, READY, InstanceState
from merlin.plan.tasks import Chunk
from merlin.plan.waiting_needs import WaitingNeeds

_Heap = list[tuple[tuple[int, int, int], str]]


class Backlog:
    """What waits; chunks that run again come before the ready tasks of their step instance."""

    def __init__(self, states: Mapping[str, InstanceState]) -> None:
        self._states = states
        self._active: dict[str, dict[Need, _Heap]] = {}  # by queue
        self._for_jobs: dict[str, _Heap] = {}  # by step: what is submitted and does not run in workers
        self._waiting = WaitingNeeds()
        self._deferred: list[tuple[float, int, Chunk]] = []  # a heap
        self._num_deferred = 0  # ever; breaks ties

    def activate(self, state: InstanceState) -> None:
        """Note that tasks of this step instance may be ready now."""
        if not state.is_active and (state.num[READY] or state.requeue):
            state.is_active = True
            if state.jobs is None:
                heap = self._active.setdefault(state.instance.queue, {}).setdefault(state.need, [])
            else:
                heap = self._for_jobs.setdefault(state.instance.step, [])
            heapq.heappush(heap, (state.rank, state.instance.id))

    def put(self, chunk: Chunk) -> None:
        """Add a chunk to run again as soon as a worker is free."""
        state = self._queue(chunk)
        state.requeue.append(chunk)
        self.activate(state)

    def defer(self, chunk: Chunk, not_before: float) -> None:
        """Add a chunk to run again at the time `not_before` or later."""
        self._queue(chunk)
        self._num_deferred += 1
        heapq.heappush(self._deferred, (not_before, self._num_deferred, chunk))

    def _queue(self, chunk: Chunk) -> InstanceState:
        state = self._states[chunk.instance]
        for a, b in pieces_of(chunk):
            state.move(a, b, QUEUED)
        return state

    def first(
        self,
        now: float,
        queue: str | None,
        may_start: Callable[[InstanceState], bool],
        room: Room | None,
    ) -> InstanceState | None:
        """The step instance whose turn it is (in one queue); it has a chunk to run again, or ready tasks.

        Step instances that may not start keep their places. With `room`, the result fits there, and must be started.
        """
        self._put_what_is_due(now)
        first: InstanceState | None = None
        by_need: dict[Need, InstanceState] = {}
        for heaps in self._active.values() if queue is None else (self._active.get(queue, {}),):
            for need, heap in heaps.items():
                if heap and (state := self._top(heap, may_start)) is not None:
                    if first is None or state.rank < first.rank:
                        first = state
                    if need not in by_need or state.rank < by_need[need].rank:
                        by_need[need] = state
        if room is None or first is None:
            return first
        allowed = self._waiting.allowed(queue, by_need.keys(), room, now)
        first = min((by_need[need] for need in allowed), key=lambda state: state.rank, default=None)
        if first is not None:
            self._waiting.started(queue, first.need)
        return first

    def first_for_job(self, now: float, step: str) -> InstanceState | None:
        """The step instance whose turn it is, of a step whose chunks become batch jobs."""
        self._put_what_is_due(now)
        return self._top(self._for_jobs.get(step, []), lambda state: True)

    def _put_what_is_due(self, now: float) -> None:
        while self._deferred and self._deferred[0][0] <= now:
            self.put(heapq.heappop(self._deferred)[2])

    def _top(self, heap: _Heap, may_start: Callable[[InstanceState], bool]) -> InstanceState | None:
        """The first step instance of a heap that may start. Instances with nothing left to run lose their places."""
        passed_over = []
        found: InstanceState | None = None
        while heap:
            state = self._states[heap[0][1]]
            has_work = bool(state.requeue or state.num[READY])
            if has_work and may_start(state):
                found = state
                break
            entry = heapq.heappop(heap)
            state.is_active = has_work
            if has_work:
                passed_over.append(entry)
        for entry in passed_over:
            heapq.heappush(heap, entry)
        return found

    def next_wakeup(self) -> float | None:
        """When the earliest deferred chunk may run, if one waits."""
        return self._deferred[0][0] if self._deferred else None

    def chunks(self) -> Iterator[Chunk]:
        """All chunks that are to run again."""
        for state in self._states.values():
            yield from state.requeue
        for _, _, chunk in self._deferred:
            yield chunk

    def drop(self, instances: Collection[str]) -> list[Chunk]:
        """Remove and return the chunks of these step instances that were to run again."""
        dropped = [chunk for chunk in self.chunks() if chunk.instance in instances]
        self._deferred = [entry for entry in self._deferred if entry[2].instance not in instances]
        heapq.heapify(self._deferred)
        for id in instances:
            self._states[id].requeue.clear()
        return dropped
