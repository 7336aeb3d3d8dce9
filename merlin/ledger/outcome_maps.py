"""The outcome of every task, kept up to date as records are read, in whatever order they come."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from merlin.base.ranges import merged
from merlin.ledger.entries import LedgerEntry, Order, runs_of
from merlin.ledger.format import Kind
from merlin.ledger.records import RESET
from merlin.ledger.resolve import apply_run
from merlin.plan.pieces import Run
from merlin.plan.runs import RunMap
from merlin.plan.tasks import FAILURES, NO_OUTCOME, Outcome

Counts = dict[int, int]  # Outcome or NO_OUTCOME -> number of tasks


class OutcomeMaps:
    """Maps of step instances; one is made when it is asked for, from the records so far."""

    def __init__(self, sizes: Mapping[str, int], order: Callable[[LedgerEntry], Order]) -> None:
        """`sizes`: number of tasks by instance; `order`: a record counts over those with a lesser key."""
        self._sizes, self._order = sizes, order
        self._pending: dict[str, list[LedgerEntry]] = {}
        self._latest: dict[str, Order] = {}
        self._resets: dict[str, list[LedgerEntry]] = {}
        self.maps: dict[str, RunMap] = {}

    def add(self, entry: LedgerEntry) -> None:
        """Take note of a record."""
        header = entry.header
        self._pending.setdefault(header.instance, []).append(entry)
        if header.kind == Kind.RANGE and header.outcome == RESET:
            self._resets.setdefault(header.instance, []).append(entry)

    def bring_up_to_date(self, instance: str, entries: Iterable[LedgerEntry]) -> RunMap:
        """The map with all records that were added; `entries` are all of this instance."""
        pending = sorted(self._pending.pop(instance, []), key=self._order)
        current, latest = self.maps.get(instance), self._latest.get(instance)
        if current is None:
            runs = _all_runs(entries, self._order)
            current = self.maps[instance] = RunMap.from_runs(self._sizes[instance], runs)
        else:
            num_late = 0 if latest is None else bisect_left(pending, latest, key=self._order)
            # late: after records that outrank them
            contested = [entry for entry in pending[:num_late] if not self._is_first(current, entry)]
            _apply(current, pending)
            self._settle(current, contested, entries)
        if pending:
            last = self._order(pending[-1])
            self._latest[instance] = last if latest is None else max(latest, last)
        return current

    def _is_first(self, current: RunMap, entry: LedgerEntry) -> bool:
        """True if nothing that was applied so far concerns the tasks of a record that comes late."""
        lo, hi, order = entry.header.lo, entry.header.hi, self._order(entry)
        if any(value != NO_OUTCOME for _, _, value in current.runs(lo, hi)):
            return False
        resets = self._resets.get(entry.header.instance, ())
        return not any(r.header.lo < hi and lo < r.header.hi and self._order(r) > order for r in resets)

    def _settle(
        self, current: RunMap, contested: Iterable[LedgerEntry], entries: Iterable[LedgerEntry]
    ) -> None:
        """Decide anew about the tasks of records that came after others that outrank them."""
        spans = merged((entry.header.lo, entry.header.hi) for entry in contested)
        groups: list[list[LedgerEntry]] = [[] for _ in spans]
        ends = [hi for _, hi in spans]
        for entry in entries if spans else ():
            i = bisect_right(ends, entry.header.lo)
            while i < len(spans) and spans[i][0] < entry.header.hi:
                groups[i].append(entry)
                i += 1
        for (lo, hi), group in zip(spans, groups, strict=True):
            for a, b, value in resolved(lo, hi, sorted(group, key=self._order)).runs():
                current.set(lo + a, lo + b, value)


def ordered_clusters(
    entries: Iterable[LedgerEntry], order: Callable[[LedgerEntry], Order]
) -> Iterator[tuple[int, int, list[LedgerEntry]]]:
    """Groups of records with overlapping ranges in order of lo, each in the order of `order`."""
    group: list[LedgerEntry] = []
    lo = hi = 0
    for entry in sorted(entries, key=lambda entry: (entry.header.lo, entry.header.hi)):
        if group and entry.header.lo < hi:
            group.append(entry)
            hi = max(hi, entry.header.hi)
            continue
        if group:
            yield lo, hi, sorted(group, key=order)
        group, lo, hi = [entry], entry.header.lo, entry.header.hi
    if group:
        yield lo, hi, sorted(group, key=order)


def resolved(lo: int, hi: int, group: list[LedgerEntry]) -> RunMap:
    """The outcomes of the tasks [lo, hi) by these records, in order, which may concern others, too."""
    current = RunMap(hi - lo)
    for entry, runs in runs_of(group):
        for a, b, value in runs:
            if a < hi and b > lo:
                run = max(a, lo) - lo, min(b, hi) - lo, value
                apply_run(current, run, reset=entry.header.kind == Kind.RANGE)
    return current


def counts_with(
    totals: Sequence[int], contested: Iterable[tuple[int, int, list[LedgerEntry]]], size: int
) -> Counts:
    """Tasks by outcome of an instance of `size` tasks; a soft failure counts as FAILED.

    `totals` are the counts of all records whose tasks no other record has; `contested`: the other ones in their groups.
    """
    counts = dict(enumerate(totals))
    for lo, hi, group in contested:
        for value, num in resolved(lo, hi, group).counts().items():
            outcome = int(Outcome.FAILED) if value in FAILURES else value
            counts[outcome] = counts.get(outcome, 0) + num
    counts[NO_OUTCOME] = 0
    counts[NO_OUTCOME] = size - sum(counts.values())
    return {outcome: num for outcome, num in counts.items() if num}


def _apply(current: RunMap, entries: list[LedgerEntry]) -> None:
    for entry, runs in runs_of(entries):
        for run in runs:
            apply_run(current, run, reset=entry.header.kind == Kind.RANGE)


def _all_runs(entries: Iterable[LedgerEntry], order: Callable[[LedgerEntry], Order]) -> Iterator[Run]:
    """Sorted runs that do not overlap; tasks without an outcome are left out."""
    singles: list[LedgerEntry] = []
    for lo, hi, group in ordered_clusters(entries, order):
        if len(group) == 1:
            singles.append(group[0])
            continue
        yield from _flush(singles)
        runs = resolved(lo, hi, group).runs()
        yield from ((lo + a, lo + b, value) for a, b, value in runs if value != NO_OUTCOME)
    yield from _flush(singles)


def _flush(singles: list[LedgerEntry]) -> Iterator[Run]:
    for _, runs in runs_of(singles):
        yield from (run for run in runs if run[2] != NO_OUTCOME)
    singles.clear()
