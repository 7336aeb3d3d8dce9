"""Decides which chunks a worker may run beside its running ones; messages of other chunks wait here for a while.

Then they go back to their queue. A message that waits holds no slot: the thread that received it continues with the
next one. Nothing here polls. When a chunk ends, its thread continues with a message that fits now.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from msgspec import Struct, field

from merlin.execution.assignment import Assignment
from merlin.execution.distributed.messages import Notice
from merlin.execution.distributed.slots import Slots
from merlin.execution.distributed.study import Study
from merlin.execution.places import Places
from merlin.plan.fit import Need, need_of
from merlin.plan.plan import StepInstance
from merlin.plan.waiting_needs import PASSING_S

HOLD_S = 2.0  # then a message goes back to its queue, for other workers; the first one stays


class Arrival(Struct, frozen=True, kw_only=True):
    """A message whose offer this worker may take."""

    notice: Notice
    study: Study
    envelope: Mapping[str, str]
    since: float = field(default_factory=time.monotonic)

    @property
    def key(self) -> str:
        return f"{self.notice.study} {self.notice.lease}"

    @property
    def instance(self) -> StepInstance:
        return self.study.workspace.instance(self.notice.instance)


class Admitted(Struct, frozen=True, kw_only=True):
    """An arrival, and the cores and GPUs for its chunk until `Admission.left`."""

    arrival: Arrival
    assignment: Assignment | None  # None: nothing but the core that every task has


class Admission:
    """Lets in what fits. The threads of a worker share it."""

    def __init__(self, places: Places, concurrency: int, slots: Slots | None = None) -> None:
        """`slots`: those for which the worker receives messages."""
        self._places, self._concurrency, self._slots = places, concurrency, slots
        self._inside: set[str] = set()
        self._waiting: dict[str, Arrival] = {}  # in the order in which they came
        self._lock = threading.Condition()

    def enter(self, arrival: Arrival) -> Admitted | Arrival | None:
        """Admit an arrival, or let it wait and return None. If too many wait, it is returned, to be put back."""
        with self._lock:
            if arrival.key in self._inside:
                return None  # a message that was sent twice
            now = time.monotonic()
            if self._fits(arrival, now):
                return self._let_in(arrival)
            if arrival.key not in self._waiting and len(self._waiting) >= self._concurrency:
                self._lock.wait(HOLD_S)  # keeps its slot: otherwise this worker would take in the whole queue
                if arrival.key in self._inside:
                    return None  # the other one was let in meanwhile
                return arrival if not self._fits(arrival, time.monotonic()) else self._let_in(arrival)
            self._waiting.setdefault(arrival.key, arrival)
            self._set_slots(now)
            return None

    def left(self, admitted: Admitted) -> Admitted | None:
        """Note that a chunk has ended or could not be taken; returns the next one for the caller to run, if any."""
        with self._lock:
            self._inside.discard(admitted.arrival.key)
            self._places.release(admitted.arrival.key)
            now = time.monotonic()
            following = next((a for a in self._waiting.values() if self._fits(a, now)), None)
            if following is not None:
                return self._let_in(following)
            self._set_slots(now)
            self._lock.notify_all()
            return None

    def to_return(self, now: float) -> list[Arrival]:
        """Messages to be put back into their queues, because others may have room."""
        with self._lock:
            out = [
                arrival
                for arrival in self._waiting.values()
                if (arrival is not self._first() and now - arrival.since >= HOLD_S)
                or self._fits(arrival, now)
            ]
            for arrival in out:
                del self._waiting[arrival.key]
            self._set_slots(now)
            return out

    def close(self) -> list[Arrival]:
        """Remove and return everything that waits, to be put back."""
        with self._lock:
            out = list(self._waiting.values())
            self._waiting.clear()
            self._lock.notify_all()
            return out

    def lacks(self, arrival: Arrival) -> bool:
        """Return whether this worker can never run it."""
        return self._places.room.lacks(need_of(arrival.instance))

    # ------------------------------------------------------------------ with the lock

    def _first(self) -> Arrival | None:
        """The arrival that has waited longest, among those that fit when nothing else runs."""
        return next((a for a in self._waiting.values() if not self.lacks(a)), None)

    def _late(self, now: float) -> Arrival | None:
        """The arrival for which room is kept, because it has waited too long."""
        first = self._first()
        return first if first is not None and now - first.since >= PASSING_S else None

    def _fits(self, arrival: Arrival, now: float) -> bool:
        late, need = self._late(now), need_of(arrival.instance)
        keep: Need | None = None
        if late is not None and late.key != arrival.key:
            keep = need_of(late.instance)
        return self._places.room.fits(need, keep)

    def _let_in(self, arrival: Arrival) -> Admitted:
        self._waiting.pop(arrival.key, None)
        self._inside.add(arrival.key)
        assignment = self._places.assign(arrival.key, arrival.instance)
        self._set_slots(time.monotonic())
        return Admitted(arrival=arrival, assignment=assignment if assignment != Assignment() else None)

    def _set_slots(self, now: float) -> None:
        """Receive messages only as long as there are cores for their chunks."""
        if self._slots is None:
            return
        num_free = 0 if self._late(now) else self._places.room.num_free_cores
        self._slots.close(max(0, self._concurrency - len(self._inside) - num_free))
