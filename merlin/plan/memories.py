"""What a scheduler knows beyond outcomes, and the next one has to know, too: delays, and deaths of workers."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from merlin.base.ranges import Range
from merlin.plan.pieces import pieces_of
from merlin.plan.runs import RunMap
from merlin.plan.task_states import READY, InstanceState
from merlin.plan.tasks import Chunk


class Deferral(Struct, frozen=True, kw_only=True):
    """Tasks that asked to be run again: outcomes do not show it, so the executor writes it into the ledger, too."""

    chunk: Chunk  # as it will be handed out
    not_before: float


class Death(Struct, frozen=True, kw_only=True):
    """A task that was alone in its chunk when its worker was lost; for the ledger, as a `Deferral`."""

    instance: str
    task: int
    infrastructure: bool  # the worker was not killed by the task
    lease: str  # of that chunk: a death counts once, however often it is reported


class Memories:
    """Counts the deaths of every task, and keeps what the ledger does not have yet."""

    def __init__(self) -> None:
        self._deaths: dict[tuple[str, int, bool], set[str]] = {}  # of instance, task, infrastructure: leases
        self._unwritten: list[Deferral | Death] = []

    def add(self, memory: Deferral | Death) -> None:
        """Keep a memory for the ledger; a death also counts."""
        self._unwritten.append(memory)
        if isinstance(memory, Death):
            self.recall(memory)

    def recall(self, death: Death) -> None:
        """Count a death that the ledger has already."""
        self._deaths.setdefault((death.instance, death.task, death.infrastructure), set()).add(death.lease)

    def num_deaths(self, instance: str, task: int, *, infrastructure: bool) -> int:
        return len(self._deaths.get((instance, task, infrastructure), ()))

    def unwritten(self) -> list[Deferral | Death]:
        """What was added since the last call."""
        out, self._unwritten = self._unwritten, []
        return out


def still_ready(
    deferrals: Iterable[tuple[InstanceState, Deferral]],
) -> list[tuple[Deferral, list[Range]]]:
    """The tasks for which each of these deferrals, in their order, is the last one, and which are ready."""
    known = list(deferrals)
    last: dict[str, RunMap] = {}
    states = {state.instance.id: state for state, _ in known}
    for number, (state, deferral) in enumerate(known):
        numbers = last.setdefault(state.instance.id, RunMap(state.instance.num_tasks, -1))
        for a, b in pieces_of(deferral.chunk):
            numbers.set(a, b, number)  # a later deferral outranks an earlier one
    out = []
    for id, numbers in last.items():
        ready: dict[int, list[Range]] = {}
        for a, b, number in numbers.runs():
            if number >= 0:
                ready.setdefault(number, []).extend(states[id].tasks.ranges((READY,), a, b))
        out += [(known[number][1], pieces) for number, pieces in sorted(ready.items()) if pieces]
    return out
