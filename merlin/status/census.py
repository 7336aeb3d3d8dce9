"""Facts of a ledger with very many records, by arrays: what a replay knows, without an object for each of them.

A ledger whose tasks take seconds has a record for each. A replay of a million of them takes ten seconds and most of a
gigabyte; this takes about one second, and a fifth of the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from merlin.ledger.entries import LedgerEntry, Order, events_in_order, payloads
from merlin.ledger.format import MIXED, Kind
from merlin.ledger.header_columns import HeaderColumns, NeedsCare, SegmentFile, read_columns
from merlin.ledger.outcome_maps import counts_with, resolved
from merlin.ledger.outcome_runs import has_soft_failures, runs_of_payload
from merlin.ledger.records import EventRecord
from merlin.ledger.segments import DamagedBytes, segment_paths
from merlin.ledger.session import SessionStarts
from merlin.plan.plan import Plan
from merlin.plan.runs import RunMap
from merlin.plan.tasks import NO_OUTCOME, Outcome
from merlin.status.tally import Recent, Sums, seen_in_newest_run

Ints = NDArray[np.int64]
# the columns of headers that are kept for every record
_NO_RECORD: dict[str, NDArray[Any]] = {
    "lo": np.empty(0, np.int64),
    "hi": np.empty(0, np.int64),
    "started": np.empty(0),
    "elapsed_s": np.empty(0, np.float32),
    "outcome": np.empty(0, np.uint8),
    "counts": np.empty((0, 4), np.uint32),
}
_NAMES = tuple(_NO_RECORD)


class _Records(Struct, frozen=True, kw_only=True):
    """The records of one step instance, n of them, sorted by their first task."""

    lo: Ints
    hi: Ints
    started: NDArray[np.float64]
    elapsed_s: NDArray[np.float32]
    outcome: NDArray[np.uint8]
    counts: NDArray[np.uint32]  # (n, 4)
    segments: NDArray[np.int32]
    rows: NDArray[np.int32]  # in their segment
    begins: NDArray[np.bool_]  # (n + 1,) True if no earlier record shares a task with this or a later record

    @property
    def alone(self) -> NDArray[np.bool_]:
        """(n,) True for records whose tasks no other record has."""
        return self.begins[:-1] & self.begins[1:]


class CensusFacts:
    """Facts of the ledger in a directory, as it is now; see `facts.LedgerFacts`."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        """Raises NeedsCare if the ledger is unusual, or changes while it is read: a replay is needed then."""
        self._sizes = {instance.id: instance.num_tasks for instance in plan.instances}
        found = _segments(directory)
        self._segments = [segment for segment, _ in found]
        self._sessions = SessionStarts()
        for segment in self._segments:
            if plan.study_id and segment.header.study_id not in ("", plan.study_id):
                raise NeedsCare
            self._sessions.add(segment.header.writers)
        self._event_rows = [np.flatnonzero(columns.kind == Kind.EVENT).tolist() for _, columns in found]
        self._last_rows = [np.flatnonzero(columns.elapsed_s > 0)[-1:].tolist() for _, columns in found]
        own = [segment.segment.path.parent == directory for segment, _ in found]
        self._records = self._by_instance([columns for _, columns in found], own)

    def _by_instance(self, every: Sequence[HeaderColumns], own: Sequence[bool]) -> dict[str, _Records]:
        numbers = {id: i for i, id in enumerate(self._sizes)}
        known = [
            np.array([numbers.get(name, -1) for name in segment.names] or [-1], np.int32)
            for segment in self._segments
        ]
        rows = [np.flatnonzero(each.kind != Kind.EVENT).astype(np.int32) for each in every]
        sizes = np.array([*self._sizes.values(), -1])  # the last size stands for an unknown step
        for i, (is_own, table, each) in enumerate(zip(own, known, every, strict=True)):
            if not is_own:  # an earlier revision may have had steps and samples that are gone
                rows[i] = rows[i][each.hi[rows[i]] <= sizes[table[each.instances[rows[i]]]]]
        owners = np.concatenate(
            [table[each.instances[own]] for table, each, own in zip(known, every, rows, strict=True)]
            or [np.empty(0, np.int32)]
        )
        if len(owners) and owners.min() < 0:
            raise NeedsCare
        order = np.lexsort((_of_all(every, rows, "lo"), owners))
        columns = {name: _of_all(every, rows, name)[order] for name in _NAMES}
        columns["segments"] = np.repeat(np.arange(len(rows), dtype=np.int32), [len(own) for own in rows])[
            order
        ]
        columns["rows"] = np.concatenate([*rows, np.empty(0, np.int32)])[order]
        bounds = np.searchsorted(owners[order], np.arange(len(numbers) + 1)).tolist()
        return {
            id: _records_of(columns, slice(bounds[i], bounds[i + 1]), self._sizes[id])
            for id, i in numbers.items()
        }

    # what the interface wants

    def counts(self) -> Mapping[str, Mapping[int, int]]:
        return self._counts

    @cached_property
    def _counts(self) -> dict[str, dict[int, int]]:
        return {id: self._counts_of(records, self._sizes[id]) for id, records in self._records.items()}

    def _counts_of(self, records: _Records, size: int) -> dict[int, int]:
        alone = records.counts[records.alone].sum(axis=0, dtype=np.int64).tolist()
        return counts_with(alone, self._contested(records), size)

    def _contested(self, records: _Records) -> Iterator[tuple[int, int, list[LedgerEntry]]]:
        """Groups of records with overlapping tasks, each in the order in which they count."""
        own = np.flatnonzero(~records.alone)
        if not len(own):
            return
        entries = self._entries(records, own)
        for group in np.split(own, np.flatnonzero(records.begins[own])[1:]):
            lo, hi = int(records.lo[group].min()), int(records.hi[group].max())
            yield lo, hi, sorted((entries[i] for i in group.tolist()), key=self._order)

    def _entries(self, records: _Records, own: Ints) -> dict[int, LedgerEntry]:
        """Some of the records with their whole headers, by their numbers."""
        found: dict[int, LedgerEntry] = {}
        for number, segment in enumerate(self._segments):
            here = own[records.segments[own] == number]
            if len(here):
                read = segment.entries(records.rows[here].tolist())
                found.update(zip(here.tolist(), read, strict=True))
        return found

    def _order(self, entry: LedgerEntry) -> Order:
        """The key of `Replay.order`."""
        return entry.order(self._sessions.of(entry.writer))

    def may_have_soft_failures(self, instance: str) -> bool:
        records = self._records[instance]
        failing = np.flatnonzero(records.counts[:, Outcome.FAILED] > 0)
        found = payloads(self._entries(records, failing).values())
        return any(has_soft_failures(entry.header, payload) for entry, payload in found)

    def outcomes_of(self, instance: str) -> RunMap:
        records = self._records[instance]
        made = RunMap.from_runs(self._sizes[instance], self._runs_alone(records))
        for lo, hi, group in self._contested(records):
            for a, b, value in resolved(lo, hi, group).runs():
                made.set(lo + a, lo + b, value)
        return made

    def _runs_alone(self, records: _Records) -> Iterator[tuple[int, int, int]]:
        """Outcomes from the records whose tasks no other record has, in order of tasks."""
        own = np.flatnonzero(records.alone)
        needs = (records.outcome[own] == MIXED) | (records.outcome[own] == Outcome.FAILED)
        entries = self._entries(records, own[needs])
        found = payloads(entries[i] for i in own[needs].tolist())
        values = (records.lo[own], records.hi[own], records.outcome[own], needs)
        for lo, hi, outcome, is_read in zip(*(value.tolist() for value in values), strict=True):
            if is_read:
                entry, payload = next(found)
                yield from (run for run in runs_of_payload(entry.header, payload) if run[2] != NO_OUTCOME)
            elif outcome != NO_OUTCOME:
                yield lo, hi, outcome

    @cached_property
    def sums(self) -> dict[str, Sums]:
        return {id: _sums(records) for id, records in self._records.items()}

    @cached_property
    def recent(self) -> dict[str, Recent]:
        return {id: _recent(records) for id, records in self._records.items()}

    def last_seen(self) -> Mapping[str, int]:
        return seen_in_newest_run(self._entries_at(self._last_rows))

    def events(self) -> list[EventRecord]:
        return self._events

    @cached_property
    def _events(self) -> list[EventRecord]:
        return events_in_order(self._entries_at(self._event_rows), self._sessions.of)

    def _entries_at(self, rows: Sequence[list[int]]) -> list[LedgerEntry]:
        """The records in some rows of each segment."""
        found = zip(self._segments, rows, strict=True)
        return [entry for segment, own in found for entry in segment.entries(own)]

    @property
    def damage(self) -> list[DamagedBytes]:
        return [segment.tail for segment in self._segments if segment.tail is not None]

    @property
    def size_bytes(self) -> int:
        return sum(segment.end for segment in self._segments)


def _segments(directory: Path) -> list[tuple[SegmentFile, HeaderColumns]]:
    """The segments that count: those that no other segment replaces."""
    try:
        found = [read for path in segment_paths(directory) if (read := read_columns(path)) is not None]
    except FileNotFoundError:
        raise NeedsCare from None
    replaced = {name for segment, _ in found for name in segment.header.replaces}
    return [each for each in found if each[0].segment.name not in replaced]


def _of_all(every: Sequence[HeaderColumns], rows: Sequence[NDArray[np.int32]], name: str) -> NDArray[Any]:
    """One column of all segments, without the events."""
    parts = [getattr(each, name)[own] for each, own in zip(every, rows, strict=True)]
    return np.concatenate(parts) if parts else _NO_RECORD[name]


def _records_of(columns: Mapping[str, NDArray[Any]], rows: slice, size: int) -> _Records:
    own = {name: values[rows] for name, values in columns.items()}
    lo, hi = own["lo"], own["hi"]
    if len(lo) and (lo.min() < 0 or hi.max() > size or bool((lo >= hi).any())):
        raise NeedsCare
    begins = np.ones(len(lo) + 1, np.bool_)
    begins[1:-1] = lo[1:] >= np.maximum.accumulate(hi)[:-1]
    return _Records(**own, begins=begins)


def _sums(records: _Records) -> Sums:
    if not len(records.lo):
        return Sums()
    elapsed_s = records.elapsed_s.astype(np.float64)
    num = records.counts[:, Outcome.OK].astype(np.int64) + records.counts[:, Outcome.FAILED]
    timed = elapsed_s > 0
    with_tasks = timed & (num > 0)
    seconds = elapsed_s[with_tasks]
    return Sums(
        num_records=len(records.lo),
        started=float(records.started.min()),
        ended=float((records.started + elapsed_s).max()),
        busy_s=float(elapsed_s[timed].sum()),
        num_ran=int(num[timed].sum()),
        num_timed=int(with_tasks.sum()),
        squares=float((seconds**2 / num[with_tasks]).sum()),
        longest_s=float(seconds.max(initial=0.0)),
    )


def _recent(records: _Records) -> Recent:
    recent = Recent()
    timed = records.elapsed_s > 0
    if not timed.any():
        return recent
    started, elapsed_s = records.started[timed], records.elapsed_s[timed].astype(np.float64)
    num = records.counts[timed][:, (Outcome.OK, Outcome.FAILED)].sum(axis=1)
    seconds, where = np.unique(np.floor(started + elapsed_s).astype(np.int64), return_inverse=True)
    first = np.full(len(seconds), np.inf)
    np.minimum.at(first, where, started)
    nums, busy_s = np.bincount(where, num), np.bincount(where, elapsed_s)
    for second in zip(seconds.tolist(), nums.tolist(), first.tolist(), busy_s.tolist(), strict=True):
        recent.add_second(*second)
    return recent
