"""What a snapshot needs of a ledger that is read record by record, and may be followed."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping

from merlin.ledger.entries import RUN_STARTED, Order, events_of
from merlin.ledger.outcome_maps import Counts
from merlin.ledger.records import EventRecord
from merlin.ledger.replay import LedgerEntry
from merlin.ledger.segments import DamagedBytes
from merlin.plan.runs import RunMap
from merlin.plan.tasks import NO_OUTCOME, Outcome
from merlin.status.tally import Recent, Sums, Tally, seen_in_newest_run

# of an event: the start of its run, whether it is another event than that start, and its order
_Place = tuple[float, bool, Order]


class TallyFacts:
    """Facts of a tally, as `LedgerFacts` wants them; `update` after the tally was updated."""

    def __init__(self, tally: Tally) -> None:
        self._state, self._tally = tally.state, tally
        self._clear()

    def _clear(self) -> None:
        self._generation = self._tally.generation
        self._num_events = 0
        self._runs: list[tuple[_Place, EventRecord]] = []  # the events that say how runs began and ended
        # the last event of any other kind, of which there may be many
        self._last: tuple[_Place, EventRecord] | None = None
        self._last_records: dict[str, LedgerEntry] = {}  # by segment: its last record of tasks that ran
        self._counts: dict[str, Counts] = {}

    def update(self, new: Iterable[LedgerEntry]) -> None:
        """Take note of the tally's new records, and of new events."""
        if self._tally.generation != self._generation:
            self._clear()
        changed = set() if self._counts else set(self._tally.sums)
        for entry in new:
            changed.add(entry.header.instance)
            if entry.header.elapsed_s > 0:
                last = self._last_records.setdefault(entry.segment.name, entry)
                if last.number < entry.number:
                    self._last_records[entry.segment.name] = entry
        for instance in changed:
            self._counts[instance] = _users_counts(self._tally.sums[instance].counts)
        events = self._state.event_entries(self._num_events)
        self._num_events += len(events)
        for entry, event in zip(events, events_of(events), strict=True):
            order = self._state.order(entry)
            found = (order[0], event.kind != RUN_STARTED, order), event
            if event.kind.startswith("run_"):
                insort(self._runs, found, key=lambda each: each[0])
            elif self._last is None or self._last[0] < found[0]:
                self._last = found

    def counts(self) -> Mapping[str, Counts]:
        """Tasks by outcome of every instance; any failure is FAILED."""
        return self._counts

    def may_have_soft_failures(self, instance: str) -> bool:
        return self._tally.sums[instance].counts.get(Outcome.SOFT_FAILED, 0) > 0

    def outcomes_of(self, instance: str) -> RunMap:
        return self._tally.outcomes_of(instance)

    @property
    def sums(self) -> Mapping[str, Sums]:
        return self._tally.sums

    @property
    def recent(self) -> Mapping[str, Recent]:
        return self._tally.recent

    def last_seen(self) -> Mapping[str, int]:
        return seen_in_newest_run(self._last_records.values())

    def last_sign(self, segment: str) -> float | None:
        """When the last tasks of a segment ended, in epoch seconds; None if it has none."""
        entry = self._last_records.get(segment)
        return None if entry is None else entry.header.ended

    def events(self) -> list[EventRecord]:
        """How all runs began and ended, and the last event of any other kind, in order of time."""
        found = list(self._runs)
        if self._last is not None:
            insort(found, self._last, key=lambda each: each[0])
        return [event for _, event in found]

    @property
    def damage(self) -> list[DamagedBytes]:
        return self._state.damage

    @property
    def size_bytes(self) -> int:
        return self._state.size_bytes


def _users_counts(counts: Mapping[int, int]) -> Counts:
    failed = counts.get(Outcome.FAILED, 0) + counts.get(Outcome.SOFT_FAILED, 0)
    others = {
        value: num for value, num in counts.items() if value < Outcome.SOFT_FAILED or value == NO_OUTCOME
    }
    return {value: num for value, num in {**others, Outcome.FAILED: failed}.items() if num}
