"""Which tasks may start beside those that run: small ones pass a wide one that finds no room, but not for ever."""

from __future__ import annotations

from collections.abc import Collection

from merlin.plan.fit import Need, Room

PASSING_S = 10.0  # for so long others may start before a task that finds no room


class WaitingNeeds:
    """Remembers since when tasks with each need have found no room."""

    def __init__(self) -> None:
        self._since: dict[tuple[str | None, Need], float] = {}

    def allowed(self, queue: str | None, needs: Collection[Need], room: Room, now: float) -> Collection[Need]:
        """Those of the needs of ready tasks (of a queue) that may start now."""
        fitting = [need for need in needs if room.fits(need)]
        for need in needs:
            if need not in fitting:
                self._since.setdefault((queue, need), now)
        late = [
            (since, need)
            for (place, need), since in self._since.items()
            if place == queue and need in needs and now - since >= PASSING_S
        ]
        if not late:
            return fitting
        _, first = min(late, key=lambda entry: entry[0])
        return [first] if first in fitting else [need for need in fitting if room.fits(need, first)]

    def started(self, queue: str | None, need: Need) -> None:
        """A chunk with this need has found room."""
        self._since.pop((queue, need), None)
