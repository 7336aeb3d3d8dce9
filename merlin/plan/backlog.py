"""What waits to be handed out: step instances by queue and rank, chunks that run again, and those with a delay."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping

from merlin.plan.pieces import pieces_of
from merlin.plan.task_states import QUEUED, READY, InstanceState
from merlin.plan.tasks import Chunk


class Backlog:
    """Chunks that run again come before the ready tasks of their step instance."""

    def __init__(self, states: Mapping[str, InstanceState]) -> None:
        self._states = states
        self._active: dict[str, list[tuple[tuple[int, int, int], str]]] = {}  # by queue, heaps
        self._deferred: list[tuple[float, int, Chunk]] = []  # a heap
        self._num_deferred = 0  # ever; breaks ties

    def activate(self, state: InstanceState) -> None:
        """Something of this step instance may be ready now."""
        if not state.is_active and (state.num[READY] or state.requeue):
            state.is_active = True
            heap = self._active.setdefault(state.instance.queue, [])
            heapq.heappush(heap, (state.rank, state.instance.id))

    def put(self, chunk: Chunk) -> None:
        """To run again, as soon as a worker is free."""
        state = self._queue(chunk)
        state.requeue.append(chunk)
        self.activate(state)

    def defer(self, chunk: Chunk, not_before: float) -> None:
        """To run again, later."""
        self._queue(chunk)
        self._num_deferred += 1
        heapq.heappush(self._deferred, (not_before, self._num_deferred, chunk))

    def _queue(self, chunk: Chunk) -> InstanceState:
        state = self._states[chunk.instance]
        for a, b in pieces_of(chunk):
            state.move(a, b, QUEUED)
        return state

    def first(
        self, now: float, queue: str | None, may_start: Callable[[InstanceState], bool]
    ) -> InstanceState | None:
        """The step instance whose turn it is (in one queue), which has a chunk to run again or ready tasks.

        Those that may not start keep their places.
        """
        while self._deferred and self._deferred[0][0] <= now:
            self.put(heapq.heappop(self._deferred)[2])
        heaps = list(self._active.values()) if queue is None else [self._active.get(queue, [])]
        passed_over = []
        found: InstanceState | None = None
        while heap := min((h for h in heaps if h), default=None):
            state = self._states[heap[0][1]]
            has_work = bool(state.requeue or state.num[READY])
            if has_work and may_start(state):
                found = state
                break
            entry = heapq.heappop(heap)
            state.is_active = has_work
            if has_work:
                passed_over.append((heap, entry))
        for heap, entry in passed_over:
            heapq.heappush(heap, entry)
        return found

    def next_wakeup(self) -> float | None:
        """When the earliest deferred chunk may run, if one waits."""
        return self._deferred[0][0] if self._deferred else None

    def chunks(self) -> Iterator[Chunk]:
        """All that are to run again."""
        for state in self._states.values():
            yield from state.requeue
        for _, _, chunk in self._deferred:
            yield chunk

    def drop(self, instances: Collection[str]) -> list[Chunk]:
        """Nothing of these step instances runs again; returns the chunks that would have."""
        dropped = [chunk for chunk in self.chunks() if chunk.instance in instances]
        self._deferred = [entry for entry in self._deferred if entry[2].instance not in instances]
        heapq.heapify(self._deferred)
        for id in instances:
            self._states[id].requeue.clear()
        return dropped
