"""Merge the segments of ended writers into one, while other processes read them."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

from merlin.base.files import replacing
from merlin.errors import LedgerError
from merlin.ledger.format import (
    SUFFIX,
    RecordHeader,
    SegmentHeader,
    Writer,
    frame,
    with_writer,
)
from merlin.ledger.segments import Segment, own_segment_paths

MAX_MERGED = 10_000  # a record names its writer by a 16-bit index


class Compaction(Struct, frozen=True, kw_only=True):
    """The result of a compaction."""

    path: Path | None  # the new segment; None if there was nothing to merge
    num_merged: int
    num_records: int


def compact(directory: Path, *, keep: Collection[str] = ()) -> Compaction:
    """Merge all intact segments into one new segment, except those named in `keep` (of live writers).

    The caller must hold the workspace's lock, or name the segments of every live writer. Readers see either all old
    segments or the new one: it lists the names that it replaces, and gets its final name only when it is complete.
    Segments with damage in the middle stay as they are.

    Raises:
        LedgerError: the new segment could not be written; the old ones are untouched.
    """
    directory = Path(directory)
    found = [(segment, segment.read_new()) for segment in map(Segment, own_segment_paths(directory))]
    replaced = {name for segment, _ in found if segment.header for name in segment.header.replaces}
    old = [segment.path for segment, _ in found if segment.name in replaced]
    merged = [
        (segment, records)
        for segment, records in found
        if segment.header is not None
        and not segment.damage
        and segment.name not in replaced
        and segment.name not in keep
    ][:MAX_MERGED]
    if len(merged) < 2:
        _remove(old)
        return Compaction(path=None, num_merged=0, num_records=0)
    gone = [segment.path for segment, _ in merged] + old
    path = directory / f"compact-{secrets.token_hex(4)}{SUFFIX}"
    num_records = _write(path, merged, tuple(p.name for p in gone))
    _remove(gone)
    return Compaction(path=path, num_merged=len(merged), num_records=num_records)


def _write(path: Path, merged: list[tuple[Segment, list[RecordHeader]]], replaces: tuple[str, ...]) -> int:
    writers: list[Writer] = []
    study_ids = {segment.header.study_id for segment, _ in merged if segment.header} - {""}
    if len(study_ids) > 1:
        raise LedgerError(
            f"{path.parent} holds the segments of several studies: {', '.join(sorted(study_ids))}"
        )
    firsts: list[int] = []
    for segment, _ in merged:
        assert segment.header is not None
        firsts.append(len(writers))
        writers += segment.header.writers
    header = SegmentHeader(study_id="".join(study_ids), writers=tuple(writers), replaces=replaces)
    num_records = 0
    try:
        with replacing(path) as temporary:
            with temporary.open("xb") as file:
                file.write(header.to_bytes())
                for (segment, records), first in zip(merged, firsts, strict=True):
                    for record, payload in segment.payloads(records):
                        file.write(frame(with_writer(payload, first + record.writer)))
                        num_records += 1
            _check(temporary, num_records)
    except OSError as e:
        raise LedgerError(f"cannot write the compacted ledger {path}: {e.strerror}") from e
    return num_records


def _check(path: Path, num_records: int) -> None:
    """Read the new segment back; only then are the old ones removed."""
    if len(Segment(path).read_new()) != num_records:
        raise LedgerError(f"the compacted ledger {path} does not read back; the old segments are kept")


def _remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
