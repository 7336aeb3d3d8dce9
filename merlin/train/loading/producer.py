"""Reading ahead: a thread that fills the slots of a ring, in order, while the trainer computes."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from queue import SimpleQueue

from merlin.shards.format.segments import Array
from merlin.train.loading.batches import BatchReader
from merlin.train.loading.delivery import Delivery, Ready
from merlin.train.loading.order import Planned
from merlin.train.loading.workers import LoaderPool


class Filler:
    """Fills slots with batches, in the thread that asks or in worker processes; it lives from epoch to epoch."""

    def __init__(
        self, reader: BatchReader, slots: list[dict[str, Array]], delivery: Delivery, pool: LoaderPool | None
    ) -> None:
        self._reader, self._slots, self._deliver, self._pool = reader, slots, delivery, pool
        self._pending: deque[tuple[int, Planned]] = deque()
        self._pid = os.getpid()
        self.held: deque[int] = deque()  # slots of batches that are still valid, oldest first

    @property
    def usable(self) -> bool:
        """False after a fork, whose workers and shared memory are its parent's, and after a worker died."""
        return self._pid == os.getpid() and (self._pool is None or self._pool.usable)

    def begin(self) -> list[int]:
        """Forget what an earlier iteration asked for; returns the slots that the trainer does not hold."""
        self._pending.clear()
        if self._pool is not None:
            self._pool.drain()
        return [slot for slot in range(len(self._slots)) if slot not in self.held]

    def submit(self, slot: int, planned: Planned) -> None:
        """Have a batch read into a slot."""
        self._deliver.wait_for(slot)
        if self._pool is not None:
            self._pool.submit(slot, planned.indices)
        self._pending.append((slot, planned))

    def collect(self) -> Ready:
        """The batch that was submitted first."""
        slot, planned = self._pending.popleft()
        arrays = self._slots[slot]
        if self._pool is None:
            arrays = self._reader.read(planned.indices, arrays)
        else:
            arrays = {key: arrays[key][:length] for key, length in self._pool.collect().items()}
        return self._deliver(arrays, slot, planned)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()


class Producer:
    """Batches in the order planned, as far ahead as there are free slots; or, without a thread, when asked."""

    def __init__(self, plan: Iterator[Planned], filler: Filler, threaded: bool) -> None:
        self._state = _State(plan, filler)
        for slot in filler.begin():
            self.give_back(slot)
        self._thread = None
        if threaded:
            self._thread = threading.Thread(
                target=_produce, args=(self._state,), name="merlin-loader", daemon=True
            )
            self._thread.start()
        self._finalizer = weakref.finalize(self, _stop, os.getpid(), self._state, self._thread)

    def next(self) -> Ready | None:
        """The next batch, None after the last; raises whatever kept it from being read."""
        if self._thread is None:
            planned = next(self._state.plan, None)
            if planned is None:
                return None
            self._state.fill(planned)
            return self._state.filler.collect()
        found = self._state.full.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def give_back(self, slot: int) -> None:
        self._state.slots.append(slot)
        self._state.freed.put(None)

    def close(self) -> None:
        """Stop reading; the thread has ended when this returns."""
        self._finalizer()


class _State:
    """The state that the thread and the trainer share.

    It has no reference to the trainer's objects, which may be deleted at any time.

    The free slot that was given back last is taken first: it may still be in the processor's cache.
    """

    def __init__(self, plan: Iterator[Planned], filler: Filler) -> None:
        self.plan = plan
        self.filler = filler
        self.slots: deque[int] = deque()
        self.freed: SimpleQueue[None] = SimpleQueue()  # an entry for each free slot, and one to stop
        self.full: SimpleQueue[Ready | BaseException | None] = SimpleQueue()
        self.stopped = False

    def fill(self, planned: Planned) -> None:
        """Wait for a free slot, and have a batch read into it; does nothing after a stop."""
        self.freed.get()
        if not self.stopped:
            self.filler.submit(self.slots.pop(), planned)


def _stop(pid: int, state: _State, thread: threading.Thread | None) -> None:
    if thread is None or pid != os.getpid():
        return  # a fork's copy has no thread
    state.stopped = True
    state.freed.put(None)
    if thread is not threading.current_thread():  # the garbage collector runs anywhere
        thread.join()


def _produce(state: _State) -> None:
    """Keep every free slot busy, and hand over what is ready, in order."""
    pending = 0
    try:
        for planned in state.plan:
            while pending and state.freed.empty():
                state.full.put(state.filler.collect())
                pending -= 1
            state.fill(planned)
            if state.stopped:
                return
            pending += 1
        while pending and not state.stopped:
            state.full.put(state.filler.collect())
            pending -= 1
        state.full.put(None)
    except BaseException as e:  # noqa: BLE001 - it is raised in the trainer's thread
        state.full.put(e)
