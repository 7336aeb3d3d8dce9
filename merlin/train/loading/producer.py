"""Reading ahead: a thread that fills the slots of a ring, in order, while the trainer computes."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

import numpy as np
from torch import Tensor

from merlin.train.loading.batches import Array, BatchReader
from merlin.train.loading.order import EpochOrder, Schedule, Step
from merlin.train.loading.workers import WorkerPool

_POSITIONS_AT_ONCE = 4096  # evaluating the order has a cost per call


@dataclass(frozen=True, slots=True)
class Planned:
    """A batch to be read."""

    indices: Array  # samples (n,)
    num_valid: int  # the first ones, which are not padding
    consumed: int  # positions of the epoch that all ranks have taken after it


@dataclass(frozen=True, slots=True)
class Ready:
    """A batch that was read; its slot is given back when the trainer is done with it."""

    batch: dict[str, Tensor]
    slot: int
    consumed: int
    await_copy: Callable[[], None] | None  # to be called in the trainer's thread


def plan_batches(order: EpochOrder, schedule: Schedule, consumed: int, rank: int) -> Iterator[Planned]:
    """What `rank` reads for the rest of an epoch."""
    size = schedule.size
    steps: list[Step] = []
    for step in schedule.steps(consumed, rank):
        steps.append(step)
        if sum(s.num for s in steps) >= _POSITIONS_AT_ONCE:
            yield from _evaluated(order, steps, size)
            steps = []
    yield from _evaluated(order, steps, size)


def _evaluated(order: EpochOrder, steps: list[Step], size: int) -> Iterator[Planned]:
    if not steps:
        return
    samples = order.at(np.concatenate([step.positions(size) for step in steps]))
    at = 0
    for step in steps:
        yield Planned(samples[at : at + step.num], step.num_valid(size), step.hi)
        at += step.num


class Filler(Protocol):
    """Fills slots; what is submitted first is collected first."""

    def submit(self, slot: int, planned: Planned) -> None: ...

    def collect(self) -> Ready: ...


class Delivery(Protocol):
    """Turns the arrays of a slot into what the trainer gets."""

    def __call__(self, arrays: dict[str, Array], slot: int, planned: Planned) -> Ready: ...

    def release(self, slot: int) -> None:
        """The trainer is done with a slot, but for copies to a GPU that it may have queued."""
        ...

    def wait_for(self, slot: int) -> None:
        """Return when nothing reads from the slot any more."""
        ...


class HereFiller:
    """Reads in the thread that asks."""

    def __init__(self, reader: BatchReader, slots: list[dict[str, Array]], delivery: Delivery) -> None:
        self._reader = reader
        self._slots = slots
        self._deliver = delivery
        self._pending: deque[tuple[int, Planned]] = deque()

    def submit(self, slot: int, planned: Planned) -> None:
        self._pending.append((slot, planned))

    def collect(self) -> Ready:
        slot, planned = self._pending.popleft()
        self._deliver.wait_for(slot)
        return self._deliver(self._reader.read(planned.indices, self._slots[slot]), slot, planned)


class PoolFiller:
    """Has worker processes read."""

    def __init__(self, pool: WorkerPool, slots: list[dict[str, Array]], delivery: Delivery) -> None:
        self._pool = pool
        self._slots = slots
        self._deliver = delivery
        self._pending: deque[tuple[int, Planned]] = deque()
        pool.drain()

    def submit(self, slot: int, planned: Planned) -> None:
        self._deliver.wait_for(slot)
        self._pool.submit(slot, planned.indices)
        self._pending.append((slot, planned))

    def collect(self) -> Ready:
        slot, planned = self._pending.popleft()
        lengths = self._pool.collect()
        arrays = {key: self._slots[slot][key][:length] for key, length in lengths.items()}
        return self._deliver(arrays, slot, planned)


class Producer:
    """Batches in the order planned, as far ahead as there are free slots; or, without a thread, when asked."""

    def __init__(self, plan: Iterator[Planned], filler: Filler, free: Iterable[int], threaded: bool) -> None:
        self._state = _State(plan, filler)
        for slot in free:
            self._state.free.put(slot)
        thread = None
        if threaded:
            thread = threading.Thread(target=_produce, args=(self._state,), name="merlin-loader", daemon=True)
            thread.start()
        self._thread = thread
        self._finalizer = weakref.finalize(self, _stop, os.getpid(), self._state, thread)

    def next(self) -> Ready | None:
        """The next batch, None after the last; raises whatever kept it from being read."""
        if self._thread is None:
            return self._read_now()
        found = self._state.full.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def _read_now(self) -> Ready | None:
        planned = next(self._state.plan, None)
        if planned is None:
            return None
        self._state.filler.submit(self._state.free.get_nowait(), planned)  # type: ignore[arg-type]
        return self._state.filler.collect()

    def give_back(self, slot: int) -> None:
        self._state.free.put(slot)

    def close(self) -> None:
        """Stop reading; the thread has ended when this returns."""
        self._finalizer()


class _State:
    """What the thread and the trainer share; it knows nothing of the trainer's objects, which may vanish."""

    def __init__(self, plan: Iterator[Planned], filler: Filler) -> None:
        self.plan = plan
        self.filler = filler
        self.free: SimpleQueue[int | None] = SimpleQueue()
        self.full: SimpleQueue[Ready | BaseException | None] = SimpleQueue()
        self.stopped = False


def _stop(pid: int, state: _State, thread: threading.Thread | None) -> None:
    if thread is None or pid != os.getpid():
        return  # a fork's copy has no thread
    state.stopped = True
    state.free.put(None)
    if thread is not threading.current_thread():  # the garbage collector runs anywhere
        thread.join()


def _produce(state: _State) -> None:
    """The thread's life: keep every free slot busy, hand over what is ready, in order."""
    slots = _FreeSlots(state)
    pending = 0
    try:
        for planned in state.plan:
            while pending and not slots.any():
                state.full.put(state.filler.collect())
                pending -= 1
            slot = slots.take()
            if slot is None:
                return
            state.filler.submit(slot, planned)
            pending += 1
        for _ in range(pending):
            if state.stopped:
                return
            state.full.put(state.filler.collect())
        state.full.put(None)
    except BaseException as e:  # noqa: BLE001 - the trainer gets it
        state.full.put(e)


class _FreeSlots:
    """The slot that was given back last is taken first: it may still be in the processor's cache."""

    def __init__(self, state: _State) -> None:
        self._state = state
        self._stack: list[int] = []

    def any(self) -> bool:
        """Whether `take` returns at once."""
        self._drain()
        return bool(self._stack) or self._state.stopped

    def take(self) -> int | None:
        """Wait for a free slot; None to stop."""
        self._drain()
        if not self._stack and not self._state.stopped:
            self._push(self._state.free.get())
        return None if self._state.stopped else self._stack.pop()

    def _drain(self) -> None:
        while not self._state.free.empty():
            self._push(self._state.free.get())

    def _push(self, slot: int | None) -> None:
        if slot is not None:
            self._stack.append(slot)
