"""Records of the ledger by their headers, and what the rest of their bytes says about outcomes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import BinaryIO, NamedTuple

from merlin.ledger.format import BlockId, RecordHeader, Writer, iter_blocks
from merlin.ledger.outcome_runs import needs_payload, runs_of_payload
from merlin.ledger.records import EventRecord
from merlin.ledger.segments import Segment
from merlin.plan.pieces import Run

RUN_STARTED = "run_started"  # an event

_MAX_OPEN = 64  # files at a time; records of several writers come in turns

Order = tuple[float, int, float, str, int]


class LedgerEntry(NamedTuple):
    """A record header and its place in the ledger."""

    header: RecordHeader
    segment: Segment
    number: int  # in the order of reading

    @property
    def writer(self) -> Writer:
        assert self.segment.header is not None
        return self.segment.header.writers[self.header.writer]

    def order(self, began: float) -> Order:
        """The sort key: the start `began` of its run, attempt, time written. A later record has a greater key.

        Records of two segments that are equal in all of these are ordered by the segments' names, not by when
        they were read.
        """
        return began, self.header.attempt, self.header.ended, self.segment.name, self.number


def payloads(entries: Iterable[LedgerEntry]) -> Iterator[tuple[LedgerEntry, bytes]]:
    """The bytes of records, in the given order.

    Raises LedgerError if somebody has removed a segment, or changed it.
    """
    with ExitStack() as stack:
        files: dict[str, BinaryIO] = {}
        for entry in entries:
            segment = entry.segment
            file = files.get(segment.name)
            if file is None:
                if len(files) >= _MAX_OPEN:
                    stack.close()
                    files.clear()
                file = files[segment.name] = stack.enter_context(segment.open())
            yield entry, segment.payload(file, entry.header)


def events_of(entries: Iterable[LedgerEntry]) -> list[EventRecord]:
    """The events in records of events, in the given order."""
    return [event_of(entry.header, payload, entry.writer) for entry, payload in payloads(entries)]


def events_in_order(entries: Iterable[LedgerEntry], began: Callable[[Writer], float]) -> list[EventRecord]:
    """The events in records of events, run by run in order of time.

    A run begins before all that happens in it, also if the clock of the machine that began it is ahead of the others.
    """
    chosen = sorted(entries, key=lambda e: (began(e.writer), e.header.started))
    found = zip(chosen, events_of(chosen), strict=True)
    return [event for _, event in sorted(found, key=lambda f: (began(f[0].writer), f[1].kind != RUN_STARTED))]


def event_of(header: RecordHeader, payload: bytes, writer: Writer) -> EventRecord:
    """The event in a record."""
    detail = next(json.loads(data) for block, _, data in iter_blocks(payload) if block == BlockId.DETAIL)
    return EventRecord(
        kind=detail["kind"], data=detail["data"], time=header.started, worker=writer.worker, host=writer.host
    )


def runs_of(entries: list[LedgerEntry]) -> Iterator[tuple[LedgerEntry, list[Run]]]:
    """The outcomes of records, as runs in task numbers, in the given order of the records."""
    found = payloads(entry for entry in entries if needs_payload(entry.header))
    for entry in entries:
        header = entry.header
        if needs_payload(header):
            _, payload = next(found)
            yield entry, runs_of_payload(header, payload)
        else:
            yield entry, [(header.lo, header.hi, header.outcome)]
