"""A ledger as an earlier Merlin could leave it: one segment in place of several, whose names it lists."""

from __future__ import annotations

import secrets
import struct
from pathlib import Path

from merlin.ledger.format import SUFFIX, SegmentHeader, Writer, frame
from merlin.ledger.segments import Segment, own_segment_paths

_WRITER_OFFSET = 4  # of the index of the writer, in the fixed part of a record


def merge_segments(directory: Path) -> int:
    """Merge all segments into a new one and remove them; returns how many there were."""
    found = [(segment, segment.read_new()) for segment in map(Segment, own_segment_paths(directory))]
    writers: list[Writer] = []
    data = b""
    for segment, records in found:
        for record, payload in segment.payloads(records):
            changed = bytearray(payload)
            struct.pack_into("<H", changed, _WRITER_OFFSET, len(writers) + record.writer)
            data += frame(bytes(changed))
        writers += segment.header.writers
    (study,) = {segment.header.study_id for segment, _ in found}
    header = SegmentHeader(
        study_id=study, writers=tuple(writers), replaces=tuple(segment.name for segment, _ in found)
    )
    (directory / f"compact-{secrets.token_hex(4)}{SUFFIX}").write_bytes(header.to_bytes() + data)
    for segment, _ in found:
        segment.path.unlink()
    return len(found)
