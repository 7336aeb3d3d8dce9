"""All records of a ledger in the order of its files, a few megabytes at a time, however large it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from merlin.errors import LedgerError
from merlin.execution.conductor import CONTROLLER, MEMORY
from merlin.ledger.entries import event_of
from merlin.ledger.format import Kind, RecordHeader, SegmentHeader, Writer
from merlin.ledger.records import EventRecord
from merlin.ledger.segments import Segment, segments
from merlin.workspace.directory import Workspace


class StreamedRecord(NamedTuple):
    """The header of a record about tasks, and who wrote it."""

    header: RecordHeader
    writer: Writer
    place: str  # where it stands; no other record of the study stands there


def streamed_records(study: Workspace) -> Iterator[StreamedRecord]:
    """The records about chunks that workers have run. Those of one worker come in the order in which it wrote them.

    What ran of steps that the study has no more is left out. Raises LedgerError if somebody removes a file
    meanwhile; ask again then.
    """
    steps = {instance.id for instance in study.plan.instances}
    for path, head in _current(study):
        for batch in _batches(path):
            for record in batch:
                if record.kind == Kind.CHUNK and record.instance in steps:
                    yield StreamedRecord(record, head.writers[record.writer], f"{path.name}:{record.offset}")


def events_of(study: Workspace) -> list[EventRecord]:
    """What has happened to the runs, in order of time, without what one scheduler only tells the next.

    Raises as `streamed_records`.
    """
    found: list[EventRecord] = []
    for path, head in _current(study):
        if not any(writer.worker == CONTROLLER for writer in head.writers):
            continue
        for batch in _batches(path):
            events = [record for record in batch if record.kind == Kind.EVENT]
            for record, payload in Segment(path).payloads(events) if events else ():
                found.append(event_of(record, payload, head.writers[record.writer]))
    told = [event for event in found if event.kind != MEMORY]
    return sorted(told, key=lambda event: event.time or 0.0)


def _current(study: Workspace) -> list[tuple[Path, SegmentHeader]]:
    """The segments that count."""
    found = segments(study.ledger_dir)
    replaced = {name for _, header in found for name in header.replaces}
    return [(path, header) for path, header in found if path.name not in replaced]


def _batches(path: Path) -> Iterator[list[RecordHeader]]:
    try:
        yield from Segment(path).batches()
    except FileNotFoundError as error:
        raise LedgerError(f"{path} was removed while it was read; ask again") from error
