"""Replay the ledger: from records to the outcome of every task."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from merlin.errors import LedgerError
from merlin.ledger.format import BlockId, Kind, RecordHeader, Writer, iter_blocks
from merlin.ledger.outcome_runs import has_soft_failures, needs_payload, runs_of_payload
from merlin.ledger.records import EventRecord, Failure, Record
from merlin.ledger.resolve import Run, apply_run, clusters, effective
from merlin.ledger.segments import DamagedBytes, Segment, segment_paths
from merlin.ledger.session import session_start
from merlin.plan.runs import RunMap
from merlin.plan.tasks import FAILURES, NO_OUTCOME, Outcome

if TYPE_CHECKING:
    from merlin.plan.plan import Plan


class LedgerEntry(NamedTuple):
    """A record header and its place in the ledger."""

    header: RecordHeader
    segment: Segment
    number: int  # in the order of reading

    @property
    def writer(self) -> Writer:
        assert self.segment.header is not None
        return self.segment.header.writers[self.header.writer]


class FailedTask(NamedTuple):
    """A task whose latest outcome is a failure, with the record's facts."""

    instance: str
    failure: Failure
    worker: str
    host: str
    attempt: int
    ended: float  # epoch seconds of the record


Ranges = list[tuple[int, int]]
Counts = dict[int, int]  # Outcome or NO_OUTCOME -> number of tasks


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
        self._clear()
        self.update()

    def _clear(self) -> None:
        self._segments: dict[str, Segment] = {}
        self._entries: dict[str, list[LedgerEntry]] = {name: [] for name in self._sizes}
        self._events: list[LedgerEntry] = []
        self._pending: dict[str, list[LedgerEntry]] = {}
        self._maps: dict[str, RunMap] = {}
        self._latest: dict[str, tuple[float, int, float, int]] = {}
        self._sessions: dict[str, float] = {}
        self._num_records = 0

    # reading

    def update(self) -> int:
        """Read what was appended since the last call; returns the number of new records."""
        before = self._num_records
        while True:
            paths = [p for p in segment_paths(self.directory) if p.name.startswith(self._prefix)]
            known = {path.name for path in paths}
            if not known.issuperset(self._segments):
                self._clear()  # a compaction has replaced segments that we have read
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
            if segment.path.name not in replaced:
                self._take(segment, headers)
        return replaced

    def _take(self, segment: Segment, headers: list[RecordHeader]) -> None:
        if segment.path.name not in self._segments:
            self._segments[segment.path.name] = segment
        if segment.header is None:
            return
        if self._study_id and segment.header.study_id and segment.header.study_id != self._study_id:
            raise LedgerError(f"{segment.path} belongs to another study ({segment.header.study_id})")
        for writer in segment.header.writers:
            began = session_start(writer.session, writer.started)
            self._sessions[writer.session] = min(self._sessions.get(writer.session, began), began)
        for header in headers:
            entry = LedgerEntry(header, segment, self._num_records)
            self._num_records += 1
            if header.kind == Kind.CHUNK or header.kind == Kind.RANGE:
                self._check(entry)
                self._entries[header.instance].append(entry)
                self._pending.setdefault(header.instance, []).append(entry)
            elif header.kind == Kind.EVENT:
                self._events.append(entry)

    def _check(self, entry: LedgerEntry) -> None:
        header = entry.header
        size = self._sizes.get(header.instance)
        if size is None:
            raise LedgerError(
                f"{entry.segment.path} names the step instance {header.instance!r}, unknown to the plan"
            )
        if not 0 <= header.lo < header.hi <= size:
            raise LedgerError(
                f"{entry.segment.path} has tasks [{header.lo}, {header.hi}) of {header.instance}, "
                f"which has {size} in the plan"
            )

    # the order of records

    def order(self, entry: LedgerEntry) -> tuple[float, int, float, int]:
        """The sort key of a record: start of its run, attempt, time written. A later record has a greater key."""
        return self._began(entry), entry.header.attempt, entry.header.ended, entry.number

    def _began(self, entry: LedgerEntry) -> float:
        """The start of the entry's run: the clocks of machines may differ, the start of a run is the same for all."""
        writer = entry.writer
        return self._sessions[writer.session] if writer.session else writer.started

    def clusters(self, instance: str) -> Iterator[tuple[int, int, list[LedgerEntry]]]:
        """Groups of records with overlapping ranges, each in the order of `order`."""
        for lo, hi, group in clusters(self._entries[instance], lambda e: (e.header.lo, e.header.hi)):
            yield lo, hi, sorted(group, key=self.order) if len(group) > 1 else group

    def has_later_run(self, session: str) -> bool:
        """Return whether another run has begun since this one did."""
        began = session_start(session, 0.0)
        return any(name and at > began for name, at in self._sessions.items())

    # outcomes

    @property
    def outcomes(self) -> dict[str, RunMap]:
        """Outcome (or NO_OUTCOME) of every task, per step instance. Callers must not change the maps."""
        for instance in self._sizes:
            self.outcomes_of(instance)
        return self._maps

    def outcomes_of(self, instance: str) -> RunMap:
        """The outcomes of one instance. The records of the others are not read."""
        pending = self._pending.pop(instance, None)
        if pending is not None or instance not in self._maps:
            self._bring_up_to_date(instance, self._sizes[instance], pending or [])
        return self._maps[instance]

    def may_have_soft_failures(self, instance: str) -> bool:
        """Return False if the instance certainly has no soft failures. This is faster than `outcomes_of`."""
        failing = [e for e in self._entries[instance] if e.header.counts[Outcome.FAILED]]
        return any(has_soft_failures(entry.header, payload) for entry, payload in self.payloads(failing))

    def _bring_up_to_date(self, instance: str, size: int, pending: list[LedgerEntry]) -> None:
        latest = self._latest.get(instance)
        pending.sort(key=self.order)
        current = self._maps.get(instance)
        if current is None or (pending and latest is not None and self.order(pending[0]) < latest):
            current = RunMap.from_runs(size, self._all_runs(instance))
            self._maps[instance] = current
        else:
            for entry, runs in self.runs_of(pending):
                for run in runs:
                    apply_run(current, run, reset=entry.header.kind == Kind.RANGE)
        if pending:
            last = self.order(pending[-1])
            self._latest[instance] = last if latest is None else max(latest, last)

    def _all_runs(self, instance: str) -> Iterator[Run]:
        singles: list[LedgerEntry] = []
        for lo, hi, group in self.clusters(instance):
            if len(group) == 1:
                singles.append(group[0])
                continue
            yield from self._flush(singles)
            yield from _shifted(self._resolve(lo, hi, group), lo)
        yield from self._flush(singles)

    def _flush(self, singles: list[LedgerEntry]) -> Iterator[Run]:
        for _, runs in self.runs_of(singles):
            yield from (run for run in runs if run[2] != NO_OUTCOME)
        singles.clear()

    def _resolve(self, lo: int, hi: int, group: list[LedgerEntry]) -> RunMap:
        current = RunMap(hi - lo)
        for entry, runs in self.runs_of(group):
            for a, b, value in runs:
                apply_run(current, (a - lo, b - lo, value), reset=entry.header.kind == Kind.RANGE)
        return current

    def counts(self) -> dict[str, Counts]:
        """Tasks per outcome of every instance, from headers alone wherever records do not overlap.

        A soft failure counts as FAILED here.
        """
        return {instance: self._counts(instance, size) for instance, size in self._sizes.items()}

    def _counts(self, instance: str, size: int) -> Counts:
        totals: dict[int, int] = defaultdict(int)
        for lo, hi, group in self.clusters(instance):
            if len(group) == 1:
                for outcome, num in enumerate(group[0].header.counts):
                    totals[outcome] += num
            else:
                for value, num in self._resolve(lo, hi, group).counts().items():
                    totals[Outcome.FAILED if value in FAILURES else value] += num
        totals[NO_OUTCOME] = 0
        totals[NO_OUTCOME] = size - sum(totals.values())
        return {value: num for value, num in totals.items() if num}

    def runs_of(self, entries: list[LedgerEntry]) -> Iterator[tuple[LedgerEntry, list[Run]]]:
        """The outcomes of records, as runs in task numbers, in the given order of the records."""
        payloads = self.payloads([e for e in entries if needs_payload(e.header)])
        for entry in entries:
            header = entry.header
            if needs_payload(header):
                _, payload = next(payloads)
                yield entry, runs_of_payload(header, payload)
            else:
                yield entry, [(header.lo, header.hi, header.outcome)]

    # details

    def payloads(self, entries: list[LedgerEntry]) -> Iterator[tuple[LedgerEntry, bytes]]:
        """The bytes of records, in the given order; a file is opened once per stretch of its records."""
        at = 0
        while at < len(entries):
            segment, first = entries[at].segment, at
            while at < len(entries) and entries[at].segment is segment:
                at += 1
            stretch = entries[first:at]
            payloads = segment.payloads([e.header for e in stretch])
            for entry, (_, payload) in zip(stretch, payloads, strict=True):
                yield entry, payload

    def entries(self, instance: str | None = None) -> list[LedgerEntry]:
        """Headers of all chunk and range records (of one instance), in the order of reading."""
        if instance is not None:
            return list(self._entries[instance])
        return sorted((e for group in self._entries.values() for e in group), key=lambda e: e.number)

    def records(self) -> Iterator[Record]:
        """Every record, decoded, segment by segment."""
        from merlin.ledger.encode import decode

        every = sorted([*self.entries(), *self._events], key=lambda e: e.number)
        for entry, payload in self.payloads(every):
            yield decode(entry.header, payload, entry.writer)

    def events(self, session: str = "") -> list[EventRecord]:
        """The events of all runs, or of one, run by run in order of time."""
        import json

        found: list[EventRecord] = []
        chosen = [e for e in self._events if session in ("", e.writer.session)]
        for entry, payload in self.payloads(sorted(chosen, key=lambda e: (self._began(e), e.header.started))):
            detail = next(
                json.loads(data) for block, _, data in iter_blocks(payload) if block == BlockId.DETAIL
            )
            writer = entry.writer
            found.append(
                EventRecord(
                    kind=detail["kind"],
                    data=detail["data"],
                    time=entry.header.started,
                    worker=writer.worker,
                    host=writer.host,
                )
            )
        return found

    def failing(self, instances: Iterable[str] | None = None) -> Iterator[tuple[LedgerEntry, Ranges | None]]:
        """Records with failures that still count, each with the tasks for which it counts (None: all)."""
        for instance in self._sizes if instances is None else instances:
            for lo, hi, group in self.clusters(instance):
                if not any(entry.header.counts[Outcome.FAILED] for entry in group):
                    continue
                if len(group) == 1:
                    yield group[0], None
                    continue
                owners = self._owners(lo, hi, group)
                for i, entry in enumerate(group):
                    current = owners.ranges([i]) if entry.header.counts[Outcome.FAILED] else []
                    if current:
                        yield entry, [(lo + a, lo + b) for a, b in current]

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
        for i, (entry, runs) in enumerate(self.runs_of(group)):
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
    def num_records(self) -> int:
        return self._num_records

    @property
    def size_bytes(self) -> int:
        """Valid bytes read, headers included."""
        return sum(segment.position for segment in self._segments.values())


def _is_in(task: int, ranges: Ranges) -> bool:
    i = bisect_right(ranges, task, key=lambda r: r[0]) - 1
    return i >= 0 and task < ranges[i][1]


def _shifted(runs: RunMap, base: int) -> Iterator[Run]:
    for lo, hi, value in runs.runs():
        if value != NO_OUTCOME:
            yield base + lo, base + hi, value


def replay(directory: Path, plan: Plan) -> Replay:
    """The state of a study according to its ledger."""
    return Replay(directory, plan)
