"""The bytes of a ledger segment; `docs/ledger-format.md` draws them. No NumPy here.

A segment is a header and then records. Numbers are little-endian.

    segment header   magic "MERLINLG" | u16 version | u16 0 | u32 length | u32 crc32 | JSON of `length` bytes
    record           magic "\\xabMLR" | u32 length | u32 crc32 | payload of `length` bytes
    payload          fixed part (40 bytes) | instance id, UTF-8 | blocks
    block            u8 id | u8 encoding | u32 length | `length` bytes
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct

from merlin.base.records import to_plain
from merlin.errors import LedgerError
from merlin.ledger.records import range_counts

SUFFIX = ".mlg"
VERSION = 1
SEGMENT_MAGIC = b"MERLINLG"
RECORD_MAGIC = b"\xabMLR"

_SEGMENT = struct.Struct("<8sHHII")
_FRAME = struct.Struct("<4sII")
# kind, outcome, instance length, writer, number of blocks, attempt, lo, hi, started, elapsed
_FIXED = struct.Struct("<BBHHHIQQdf")
_BLOCK = struct.Struct("<BBI")
COUNTS = struct.Struct("<4I")

FRAME_BYTES = _FRAME.size
MIXED = 254  # in the fixed part: the outcomes differ, and are in a block of their own
MAX_RECORD_BYTES = 1 << 30


class Kind(IntEnum):
    CHUNK = 1
    RANGE = 2
    EVENT = 3


class BlockId(IntEnum):
    COUNTS = 1  # always the first block of a record with mixed outcomes
    OUTCOMES = 2  # always the second block of such a record
    SECONDS = 3
    STARTED_OFFSETS = 4
    EXIT_CODES = 5
    TRIES = 6
    FAILURE_TASKS = 7  # offsets from lo; absent if the failures are exactly the failed tasks
    FAILURE_CAUSES = 8  # index into the table of causes, per failure
    CAUSES = 9  # JSON [[cause, signature], …]
    TAILS = 10  # zlib of JSON [[offset from lo, tail], …]
    DETAIL = 11  # JSON object: cause of a range; kind and data of an event


class Encoding(IntEnum):
    RAW = 0
    CONSTANT = 1  # one element
    RLE16 = 2  # u32 number of runs, u16 lengths, values
    RLE32 = 3  # u32 number of runs, u32 lengths, values


class Writer(Struct, frozen=True, kw_only=True):
    """The process that wrote a record."""

    worker: str
    host: str
    pid: int
    session: str  # one per `merlin run` or `merlin restart`; orders the records of different runs
    started: float  # epoch seconds


class SegmentHeader(Struct, frozen=True, kw_only=True):
    """The first bytes of a segment. A merged segment has several writers and replaces other segments."""

    study_id: str
    writers: tuple[Writer, ...]  # a record names its writer by index
    replaces: tuple[str, ...] = ()  # file names; readers ignore these

    def to_bytes(self) -> bytes:
        body = json.dumps(to_plain(self), separators=(",", ":")).encode()
        return _SEGMENT.pack(SEGMENT_MAGIC, VERSION, 0, len(body), zlib.crc32(body)) + body


class RecordHeader(NamedTuple):
    """The part of a record that is kept in memory when the headers are read."""

    kind: int
    outcome: int  # of every task, or MIXED
    instance: str
    writer: int
    attempt: int
    lo: int
    hi: int
    started: float
    elapsed_s: float
    counts: tuple[int, int, int, int]  # ok, failed, skipped, interrupted
    offset: int  # of the payload in the file
    length: int  # of the payload

    @property
    def ended(self) -> float:
        return self.started + self.elapsed_s


class RecordFields(NamedTuple):
    """The fixed part of a record to be written."""

    kind: Kind
    outcome: int
    instance: str
    attempt: int
    lo: int
    hi: int
    started: float
    elapsed_s: float


BlockData = tuple[BlockId, Encoding, bytes]


_NO_SEGMENT = (
    "is not a ledger segment, or its beginning is damaged; "
    "move it away, and merlin restart runs again what only it knew to have ended"
)


def parse_segment_header(data: bytes, where: str) -> tuple[SegmentHeader, int] | None:
    """The header and its size, or None if it has not been written completely (yet).

    Raises LedgerError if this is another format or an unknown version.
    """
    if len(data) < _SEGMENT.size:
        if not SEGMENT_MAGIC.startswith(data[:8]) and data.strip(b"\0"):
            raise LedgerError(f"{where} {_NO_SEGMENT}")
        return None
    magic, version, _, length, crc = _SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        if not data.strip(b"\0"):
            return None
        raise LedgerError(f"{where} {_NO_SEGMENT}")
    if version != VERSION:
        raise LedgerError(f"{where} has ledger version {version}; this merlin reads version {VERSION}")
    end = _SEGMENT.size + length
    body = data[_SEGMENT.size : end]
    if len(body) < length or zlib.crc32(body) != crc:
        return None
    fields = json.loads(body)
    writers = tuple(Writer(**w) for w in fields["writers"])
    header = SegmentHeader(study_id=fields["study_id"], writers=writers, replaces=tuple(fields["replaces"]))
    return header, end


def frame(payload: bytes) -> bytes:
    if len(payload) > MAX_RECORD_BYTES:
        raise LedgerError(f"a ledger record of {len(payload)} bytes is too long; use smaller chunks")
    return _FRAME.pack(RECORD_MAGIC, len(payload), zlib.crc32(payload)) + payload


def payload_length(data: bytes) -> int:
    """The length of the payload of a record that begins with these bytes."""
    return int(_FRAME.unpack_from(data)[1])


def payload_in(data: bytes) -> bytes | None:
    """The payload of a framed record; None if these bytes are not a record, or have changed."""
    if len(data) < FRAME_BYTES:
        return None
    magic, length, crc = _FRAME.unpack_from(data)
    payload = data[FRAME_BYTES:]
    is_whole = magic == RECORD_MAGIC and length == len(payload) and crc == zlib.crc32(payload)
    return payload if is_whole else None


def encode_payload(fields: RecordFields, blocks: list[BlockData]) -> bytes:
    name = fields.instance.encode()
    fixed = _FIXED.pack(
        fields.kind, fields.outcome, len(name), 0, len(blocks), fields.attempt,
        fields.lo, fields.hi, fields.started, max(0.0, fields.elapsed_s),
    )  # fmt: skip
    parts = [fixed, name]
    for block, encoding, data in blocks:
        parts += (_BLOCK.pack(block, encoding, len(data)), data)
    return b"".join(parts)


class Parsed(NamedTuple):
    records: list[RecordHeader]
    end: int  # offset in the data after the last valid record
    needs: int  # size that the next record claims to have, from `end` on; 0: no record follows


def parse_records(data: bytes, at: int, base: int, names: dict[bytes, str]) -> Parsed:
    """Read records of `data` from offset `at` on, up to the first that is not valid.

    `base` is the file offset of data[0]; `names` interns instance ids.
    """
    records: list[RecordHeader] = []
    view = memoryview(data)
    size = len(data)
    fixed_size, crc32 = _FIXED.size, zlib.crc32
    while at + FRAME_BYTES <= size:
        magic, length, crc = _FRAME.unpack_from(data, at)
        if magic != RECORD_MAGIC or length < fixed_size or length > MAX_RECORD_BYTES:
            return Parsed(records, at, 0)
        start = at + FRAME_BYTES
        end = start + length
        if end > size:
            return Parsed(records, at, FRAME_BYTES + length)
        if crc32(view[start:end]) != crc:
            return Parsed(records, at, 0)
        records.append(_header(data, start, base, length, names))
        at = end
    return Parsed(records, at, FRAME_BYTES)


def _header(data: bytes, start: int, base: int, length: int, names: dict[bytes, str]) -> RecordHeader:
    kind, outcome, name_length, writer, _, attempt, lo, hi, started, elapsed_s = _FIXED.unpack_from(
        data, start
    )
    name_at = start + _FIXED.size
    raw = data[name_at : name_at + name_length]
    name = names.get(raw)
    if name is None:
        name = names.setdefault(raw, raw.decode())
    if outcome == MIXED:
        counts = COUNTS.unpack_from(data, name_at + name_length + _BLOCK.size)
    else:
        counts = range_counts(outcome, hi - lo)
    return RecordHeader(
        kind, outcome, name, writer, attempt, lo, hi, started, elapsed_s, counts, base + start, length
    )


def iter_blocks(payload: bytes) -> Iterator[BlockData]:
    fixed = _FIXED.unpack_from(payload)
    at = _FIXED.size + fixed[2]
    for _ in range(fixed[4]):
        block, encoding, length = _BLOCK.unpack_from(payload, at)
        at += _BLOCK.size
        yield block, Encoding(encoding), payload[at : at + length]
        at += length


def iter_runs(encoding: Encoding, data: bytes, num: int, format: str = "B") -> Iterator[tuple[int, int, int]]:
    """(lo, hi, value) runs of a block of whole numbers in this format of `struct`, without NumPy."""
    if encoding is Encoding.CONSTANT:
        yield 0, num, *struct.unpack(f"<{format}", data)
    elif encoding is Encoding.RAW:
        raw, lo = struct.unpack(f"<{num}{format}", data), 0
        for i in range(1, num + 1):
            if i == num or raw[i] != raw[lo]:
                yield lo, i, raw[lo]
                lo = i
    else:
        (num_runs,) = struct.unpack_from("<I", data)
        width = "H" if encoding is Encoding.RLE16 else "I"
        lengths = struct.unpack_from(f"<{num_runs}{width}", data, 4)
        values = struct.unpack_from(f"<{num_runs}{format}", data, 4 + struct.calcsize(f"<{num_runs}{width}"))
        lo = 0
        for length, value in zip(lengths, values, strict=True):
            yield lo, lo + length, value
            lo += length
