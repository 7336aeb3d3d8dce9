"""Replay the ledger: from records to the outcome of every task."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from merlin.errors import LedgerError
from merlin.ledger.entries import LedgerEntry as LedgerEntry
from merlin.ledger.entries import Order, events_in_order, payloads, runs_of
from merlin.ledger.format import Kind, RecordHeader
from merlin.ledger.outcome_maps import Counts, OutcomeMaps, counts_with, ordered_clusters
from merlin.ledger.outcome_runs import has_soft_failures
from merlin.ledger.records import EventRecord, Failure, Record
from merlin.ledger.resolve import effective
from merlin.ledger.segments import DamagedBytes, Segment, segment_paths
from merlin.ledger.session import SessionStarts
from merlin.plan.runs import RunMap
from merlin.plan.tasks import NO_OUTCOME, Outcome

if TYPE_CHECKING:
    from merlin.plan.plan import Plan


class FailedTask(NamedTuple):
    """A task whose latest outcome is a failure, with the record's facts."""

    instance: str
    failure: Failure
    worker: str
    host: str
    attempt: int
    ended: float  # epoch seconds of the record


Ranges = list[tuple[int, int]]


class Replay:
    """The state of a study according to its ledger; `update` reads only what was appended since.

    `damage` lists the bytes that could not be used. Instances without any record have no outcome for any task.
    """

    def __init__(self, directory: Path, plan: Plan, *, prefix: str = "") -> None:
        """Read all segments, or only those whose names begin with `prefix`.

        Raises LedgerError if they are unreadable or belong to another plan.
        """
        self.directory, self._prefix = Path(directory), prefix
        self._study_id = plan.study_id
        self._sizes = {instance.id: instance.num_tasks for instance in plan.instances}
        self._generation = 0
        self._clear()
        self.update()

    def _clear(self) -> None:
        self._generation += 1
        self._segments: dict[str, Segment] = {}
        self._entries: dict[str, list[LedgerEntry]] = {name: [] for name in self._sizes}
        self._events: list[LedgerEntry] = []
        self._maps = OutcomeMaps(self._sizes, self.order)
        self._sessions = SessionStarts()
        self._num_records = 0

    # reading

    def update(self) -> int:
        """Read what was appended since the last call; returns the number of new records."""
        before = self._num_records
        while True:
            paths = [p for p in segment_paths(self.directory) if p.name.startswith(self._prefix)]
            known = {path.name for path in paths}
            if not known.issuperset(self._segments):
                self._clear()  # another segment has replaced some that we have read
            try:
                replaced = self._read(paths)
            except FileNotFoundError:
                self._clear()  # removed between listing and opening
                continue
            if replaced.intersection(self._segments):
                self._clear()
                self._read(paths)
            return abs(self._num_records - before)

    def _read(self, paths: list[Path]) -> set[str]:
        """Read all segments except the replaced ones; returns the names of the replaced ones."""
        replaced: set[str] = set()
        fresh: list[tuple[Segment, list[RecordHeader]]] = []
        for path in paths:
            segment = self._segments.get(path.name) or Segment(path)
            fresh.append((segment, segment.read_new()))
            if segment.header is not None:
                replaced.update(segment.header.replaces)
        for segment, headers in fresh:
            if segment.name not in replaced:
                self._take(segment, headers)
        return replaced

    def _take(self, segment: Segment, headers: list[RecordHeader]) -> None:
        self._segments[segment.name] = segment
        if segment.header is None:
            return
        if self._study_id and segment.header.study_id and segment.header.study_id != self._study_id:
            raise LedgerError(f"{segment.path} belongs to another study ({segment.header.study_id})")
        self._sessions.add(segment.header.writers)
        for header in headers:
            entry = LedgerEntry(header, segment, self._num_records)
            self._num_records += 1
            if header.kind == Kind.CHUNK or header.kind == Kind.RANGE:
                if not self._concerns(entry):
                    continue
                self._entries[header.instance].append(entry)
                self._maps.add(entry)
            elif header.kind == Kind.EVENT:
                self._events.append(entry)

    def _concerns(self, entry: LedgerEntry) -> bool:
        """Whether the plan has the tasks of a record; those of earlier revisions may be gone. Raises LedgerError."""
        header = entry.header
        size = self._sizes.get(header.instance)
        if entry.segment.path.parent != self.directory and (size is None or header.hi > size):
            return False
        if size is None:
            raise LedgerError(
                f"{entry.segment.path} names the step instance {header.instance!r}, unknown to the plan"
            )
        if not 0 <= header.lo < header.hi <= size:
            raise LedgerError(
                f"{entry.segment.path} has tasks [{header.lo}, {header.hi}) of {header.instance}, "
                f"which has {size} in the plan"
            )
        return True

    # the order of records

    def order(self, entry: LedgerEntry) -> Order:
        """The sort key of a record: a later record has a greater key."""
        return entry.order(self._sessions.of(entry.writer))

    def clusters(self, instance: str) -> Iterator[tuple[int, int, list[LedgerEntry]]]:
        """Groups of records with overlapping ranges, each in the order of `order`."""
        return ordered_clusters(self._entries[instance], self.order)

    def has_later_run(self, session: str) -> bool:
        """Return whether another run has begun since this one did."""
        return self._sessions.has_later(session)

    # outcomes

    @property
    def outcomes(self) -> dict[str, RunMap]:
        """Outcome (or NO_OUTCOME) of every task, per step instance. Callers must not change the maps."""
        for instance in self._sizes:
            self.outcomes_of(instance)
        return self._maps.maps

    def outcomes_of(self, instance: str) -> RunMap:
        """The outcomes of one instance. The records of the others are not read."""
        return self._maps.bring_up_to_date(instance, self._entries[instance])

    def may_have_soft_failures(self, instance: str) -> bool:
        """Return False if the instance certainly has no soft failures. This is faster than `outcomes_of`."""
        failing = [e for e in self._entries[instance] if e.header.counts[Outcome.FAILED]]
        return any(has_soft_failures(entry.header, payload) for entry, payload in self.payloads(failing))

    def counts(self) -> dict[str, Counts]:
        """Tasks per outcome of every instance, from headers alone wherever records do not overlap.

        A soft failure counts as FAILED here.
        """
        return {instance: self._counts(instance, size) for instance, size in self._sizes.items()}

    def _counts(self, instance: str, size: int) -> Counts:
        totals = [0, 0, 0, 0]
        contested = []
        for lo, hi, group in self.clusters(instance):
            if len(group) == 1:
                for outcome, num in enumerate(group[0].header.counts):
                    totals[outcome] += num
            else:
                contested.append((lo, hi, group))
        return counts_with(totals, contested, size)

    # details

    def payloads(self, entries: list[LedgerEntry]) -> Iterator[tuple[LedgerEntry, bytes]]:
        """The bytes of records, in the given order. Raises LedgerError if some were removed."""
        return payloads(entries)

    def entries(self, instance: str | None = None, first: int = 0) -> list[LedgerEntry]:
        """Headers of all chunk and range records (of one instance, from the `first` on), in the order of reading."""
        if instance is not None:
            return self._entries[instance][first:]
        return sorted((e for group in self._entries.values() for e in group), key=lambda e: e.number)

    def records(self) -> Iterator[Record]:
        """Every record, decoded, segment by segment."""
        from merlin.ledger.encode import decode

        every = sorted([*self.entries(), *self._events], key=lambda e: e.number)
        for entry, payload in self.payloads(every):
            yield decode(entry.header, payload, entry.writer)

    def event_entries(self, first: int = 0) -> list[LedgerEntry]:
        """Headers of the events from the `first` on, in the order of reading."""
        return self._events[first:]

    def events(self, session: str = "") -> list[EventRecord]:
        """The events of all runs, or of one, run by run in order of time."""
        chosen = [e for e in self._events if session in ("", e.writer.session)]
        return events_in_order(chosen, self._sessions.of)

    def failing(self, instances: Iterable[str] | None = None) -> Iterator[tuple[LedgerEntry, Ranges | None]]:
        """Records with failures that still count, each with the tasks for which it counts (None: all)."""
        for instance in self._sizes if instances is None else instances:
            for lo, hi, group in self.clusters(instance):
                if any(entry.header.counts[Outcome.FAILED] for entry in group):
                    for entry, ranges in self._standing(lo, hi, group):
                        if entry.header.counts[Outcome.FAILED] and ranges != []:
                            yield entry, ranges

    def standing(self, instance: str) -> Iterator[tuple[LedgerEntry, Ranges | None]]:
        """All records of an instance, each with the tasks for which it counts: None for all, [] for none."""
        for lo, hi, group in self.clusters(instance):
            yield from self._standing(lo, hi, group)

    def _standing(
        self, lo: int, hi: int, group: list[LedgerEntry]
    ) -> Iterator[tuple[LedgerEntry, Ranges | None]]:
        if len(group) == 1:
            yield group[0], None
            return
        owners = self._owners(lo, hi, group)
        ranges: list[Ranges] = [[] for _ in group]
        for a, b, i in owners.runs():
            if i >= 0:
                ranges[i].append((lo + a, lo + b))
        yield from zip(group, ranges, strict=True)

    def failures(self, instances: Iterable[str] | None = None) -> Iterator[FailedTask]:
        """Tasks whose latest outcome is FAILED, with the cause."""
        from merlin.ledger.encode import failures_of

        found = list(self.failing(instances))
        payloads = self.payloads([entry for entry, _ in found])
        for (entry, only), (_, payload) in zip(found, payloads, strict=True):
            header, writer = entry.header, entry.writer
            for failure in failures_of(header, payload):
                if only is None or _is_in(failure.task, only):
                    yield FailedTask(
                        header.instance, failure, writer.worker, writer.host, header.attempt, header.ended
                    )

    def _owners(self, lo: int, hi: int, group: list[LedgerEntry]) -> RunMap:
        """For each task, the index of the record in the cluster that counts; -1 for none."""
        current, owners = RunMap(hi - lo), RunMap(hi - lo, default=-1)
        for i, (entry, runs) in enumerate(runs_of(group)):
            reset = entry.header.kind == Kind.RANGE
            for a, b, value in runs:
                if value == NO_OUTCOME and not reset:
                    continue
                for x, y in list(effective(current, (a - lo, b - lo, value))):
                    current.set(x, y, value)
                    owners.set(x, y, i)
        return owners

    @property
    def damage(self) -> list[DamagedBytes]:
        """The bytes that could not be used. A torn end is normal after a kill, or while a writer is writing."""
        found: list[DamagedBytes] = []
        for segment in self._segments.values():
            found += segment.damage
            if segment.tail is not None:
                found.append(segment.tail)
        return found

    @property
    def segments(self) -> list[Segment]:
        return list(self._segments.values())

    @property
    def generation(self) -> int:
        """A number that changes when everything is read again, because segments were replaced."""
        return self._generation

    @property
    def num_records(self) -> int:
        return self._num_records

    @property
    def size_bytes(self) -> int:
        """Valid bytes read, headers included."""
        return sum(segment.position for segment in self._segments.values())


def _is_in(task: int, ranges: Ranges) -> bool:
    i = bisect_right(ranges, task, key=lambda r: r[0]) - 1
    return i >= 0 and task < ranges[i][1]


def replay(directory: Path, plan: Plan) -> Replay:
    """The state of a study according to its ledger."""
    return Replay(directory, plan)
