"""What a snapshot needs to know about a ledger. Both a replay of the ledger and a census of its headers know it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Protocol

from merlin.ledger.records import EventRecord
from merlin.ledger.replay import Counts, Replay
from merlin.ledger.segments import DamagedBytes
from merlin.plan.failed_input import OutcomeRecord
from merlin.plan.plan import Plan
from merlin.plan.runs import RunMap
from merlin.status.tally import Recent, Sums


class LedgerFacts(OutcomeRecord, Protocol):
    """A ledger at one moment."""

    def sums(self) -> Mapping[str, Sums]:
        """What the records of every step instance add up to, without the counts."""

    def recent(self) -> Mapping[str, Recent]:
        """What ended lately, of every step instance."""

    def last_seen(self) -> Mapping[str, int]:
        """Step instance -> workers whose last record was about it, in the current run."""

    def events(self) -> list[EventRecord]:
        """The events of all runs, run by run in order of time."""

    @property
    def damage(self) -> list[DamagedBytes]:
        """The bytes that could not be used."""

    @property
    def size_bytes(self) -> int:
        """Valid bytes read."""


class ReplayFacts:
    """Facts of a replay."""

    def __init__(self, plan: Plan, state: Replay) -> None:
        self._state, self._instances = state, [instance.id for instance in plan.instances]

    def counts(self) -> Mapping[str, Counts]:
        return self._counts

    @cached_property
    def _counts(self) -> Mapping[str, Counts]:
        return self._state.counts()

    def may_have_soft_failures(self, instance: str) -> bool:
        return self._state.may_have_soft_failures(instance)

    def outcomes_of(self, instance: str) -> RunMap:
        return self._state.outcomes_of(instance)

    def sums(self) -> Mapping[str, Sums]:
        return self._added[0]

    def recent(self) -> Mapping[str, Recent]:
        return self._added[1]

    @cached_property
    def _added(self) -> tuple[dict[str, Sums], dict[str, Recent]]:
        sums = {instance: Sums() for instance in self._instances}
        recents = {instance: Recent() for instance in self._instances}
        for instance in self._instances:
            add, add_recent = sums[instance].add, recents[instance].add
            for entry in self._state.entries(instance):
                add(entry)
                add_recent(entry)
        return sums, recents

    def last_seen(self) -> Mapping[str, int]:
        last = {e.segment.name: e for e in self._state.entries() if e.header.elapsed_s > 0}
        if not last:
            return {}
        session = max(last.values(), key=lambda entry: entry.writer.started).writer.session
        seen: dict[str, int] = {}
        for entry in last.values():
            if entry.writer.session == session:
                seen[entry.header.instance] = seen.get(entry.header.instance, 0) + 1
        return seen

    def events(self) -> list[EventRecord]:
        return self._state.events()

    @property
    def damage(self) -> list[DamagedBytes]:
        return self._state.damage

    @property
    def size_bytes(self) -> int:
        return self._state.size_bytes
