"""The headers of a segment's records as arrays: the quick way to read a segment with hundreds of thousands of them.

A segment with damage is left to `Segment`, which reads record by record and says what is wrong.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from merlin.base.ranges import distinct
from merlin.errors import LedgerError
from merlin.ledger.entries import LedgerEntry
from merlin.ledger.format import (
    FRAME_BYTES,
    MIXED,
    RECORD_MAGIC,
    Kind,
    SegmentHeader,
    parse_records,
    payload_length,
)
from merlin.ledger.records import range_counts
from merlin.ledger.segments import DamagedBytes, Segment

# the frame of a record and the fixed part of its payload, as `format` lays them out
_HEAD = np.dtype(
    [
        ("magic", "<u4"), ("length", "<u4"), ("crc", "<u4"),
        ("kind", "u1"), ("outcome", "u1"), ("name_length", "<u2"), ("writer", "<u2"), ("num_blocks", "<u2"),
        ("attempt", "<u4"), ("lo", "<u8"), ("hi", "<u8"), ("started", "<f8"), ("elapsed_s", "<f4"),
    ]
)  # fmt: skip
_WINDOW_BYTES = 4 << 20
_BLOCK_HEAD = 6  # bytes before the data of a block
_COUNTS = np.dtype([("counts", "<4u4")])
_KNOWN = np.array([[*range_counts(outcome, 1)] for outcome in range(256)], np.uint32)  # counts of one task


class NeedsCare(Exception):
    """A segment that cannot be read this way."""


class HeaderColumns(Struct, frozen=True, kw_only=True):
    """Headers of n records of one segment, in file order: only the parts that are needed of all records."""

    kind: NDArray[np.uint8]  # (n,)
    outcome: NDArray[np.uint8]  # (n,)
    lo: NDArray[np.int64]  # (n,)
    hi: NDArray[np.int64]  # (n,)
    started: NDArray[np.float64]  # (n,)
    elapsed_s: NDArray[np.float32]  # (n,)
    counts: NDArray[np.uint32]  # (n, 4) ok, failed, skipped, interrupted
    instances: NDArray[np.int32]  # (n,) index into the segment's names
    offsets: NDArray[np.int64]  # (n,) of the payloads in the file


class SegmentFile(Struct, frozen=True, kw_only=True):
    """A segment: its header, the places of its records, and bytes at its end that are not a record (yet)."""

    segment: Segment  # with its header, and no record read
    header: SegmentHeader
    names: tuple[str, ...]  # of step instances
    offsets: NDArray[np.int64]  # of the payloads
    end: int  # where the last record ends
    tail: DamagedBytes | None

    def entries(self, rows: Iterable[int]) -> Iterator[LedgerEntry]:
        """Some of the records with all of their headers. Raises NeedsCare if they are gone."""
        try:
            file = self.segment.open()
        except LedgerError:
            raise NeedsCare from None
        with file:
            for row in rows:
                at = int(self.offsets[row]) - FRAME_BYTES
                data = os.pread(file.fileno(), FRAME_BYTES, at)
                data = os.pread(file.fileno(), FRAME_BYTES + payload_length(data), at)
                (header,) = parse_records(data, 0, at, {}).records
                yield LedgerEntry(header, self.segment, row)


def read_columns(path: Path) -> tuple[SegmentFile, HeaderColumns] | None:
    """The headers of a segment; None while its own header is not complete.

    Raises:
        NeedsCare: there is damage in it.
        LedgerError: it is of another format or version.
        FileNotFoundError: somebody has removed it.
    """
    segment = Segment(path)
    with path.open("rb", buffering=0) as file:
        fd = file.fileno()
        size = os.fstat(fd).st_size
        if not segment.read_header(fd, size):
            return None
        assert segment.header is not None
        first, names = segment.position, _Names()
        parts = list(_windows(fd, first, size, names))
    end = parts[-1][1] if parts else first
    columns = _joined([columns for columns, _ in parts])
    found = SegmentFile(
        segment=segment,
        header=segment.header,
        names=tuple(names.known),
        offsets=columns.offsets,
        end=end,
        tail=DamagedBytes(path, end, size - end, torn=True) if end < size else None,
    )
    return found, columns


def _joined(parts: list[HeaderColumns]) -> HeaderColumns:
    """All windows of a segment as one."""
    every = parts or [_columns(b"", 0, np.empty(0, np.int64), np.empty(0, _HEAD), _Names())]
    names = HeaderColumns.__struct_fields__
    return HeaderColumns(**{name: np.concatenate([getattr(part, name) for part in every]) for name in names})


def _windows(fd: int, first: int, size: int, names: _Names) -> Iterator[tuple[HeaderColumns, int]]:
    """The records of the file window by window, and where each window's last record ends."""
    at, window = first, _WINDOW_BYTES
    while at < size:
        data = os.pread(fd, min(window, size - at), at)
        found, used = _parse(data, at, names)
        if used:
            at += used
            yield found, at
        elif at + len(data) >= size or len(data) < window:
            return  # the bytes at the end are not a record yet
        else:
            window *= 2  # a record that is longer than a window


def _parse(data: bytes, base: int, names: _Names) -> tuple[HeaderColumns, int]:
    """The complete records at the beginning of `data`, and how many bytes they take."""
    starts = _chain(data)
    head = _gather(data, starts, _HEAD)
    ends = starts + FRAME_BYTES + head["length"]
    if len(starts) and ends[-1] > len(data):
        starts, head, ends = starts[:-1], head[:-1], ends[:-1]
    _check(data, starts, ends, head)
    return _columns(data, base, starts, head, names), int(ends[-1]) if len(ends) else 0


def _columns(
    data: bytes, base: int, starts: NDArray[np.int64], head: NDArray[np.void], names: _Names
) -> HeaderColumns:
    return HeaderColumns(
        kind=head["kind"].copy(),
        outcome=head["outcome"].copy(),
        lo=head["lo"].astype(np.int64),
        hi=head["hi"].astype(np.int64),
        started=head["started"].copy(),
        elapsed_s=head["elapsed_s"].copy(),
        counts=_counts(data, starts, head),
        instances=names.indices(data, starts + _HEAD.itemsize, head["name_length"]),
        offsets=base + starts + FRAME_BYTES,
    )


def _gather(data: bytes, starts: NDArray[np.int64], kind: np.dtype[np.void]) -> NDArray[np.void]:
    """The values of one type at places of the data, which need not be aligned."""
    room = len(data) - kind.itemsize + 1
    if not len(starts) or room <= 0:
        return np.empty(0, kind)
    every: NDArray[np.void] = np.ndarray((room,), kind, data, strides=(1,))
    return every[starts]


def _chain(data: bytes) -> NDArray[np.int64]:
    """Where records begin: each where the one before it ends. The last one may be cut off. Raises NeedsCare."""
    raw = np.frombuffer(data, np.uint8)
    room = len(data) - _HEAD.itemsize + 1
    if room <= 0:
        return np.empty(0, np.int64)
    found = np.flatnonzero(raw[:room] == RECORD_MAGIC[0])
    for i, byte in enumerate(RECORD_MAGIC[1:], 1):
        found = found[raw[found + i] == byte]
    if not len(found) or found[0] != 0:
        raise NeedsCare
    ends = found + FRAME_BYTES + _gather(data, found, _HEAD)["length"].astype(np.int64)
    if np.array_equal(ends[:-1], found[1:]):
        return found
    return _followed(found, ends, room)


def _followed(found: NDArray[np.int64], ends: NDArray[np.int64], room: int) -> NDArray[np.int64]:
    """Where records begin, if the magic bytes also occur inside records. Raises NeedsCare."""
    places, kept, at = {place: i for i, place in enumerate(found.tolist())}, [], 0
    every = ends.tolist()
    while at < room:
        if at not in places:
            raise NeedsCare
        kept.append(at)
        at = every[places[at]]
    return np.array(kept, np.int64)


def _check(data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], head: NDArray[np.void]) -> None:
    """Raise NeedsCare if a checksum is wrong."""
    view, crc32 = memoryview(data), zlib.crc32
    bounds = zip((starts + FRAME_BYTES).tolist(), ends.tolist(), strict=True)
    if [crc32(view[lo:hi]) for lo, hi in bounds] != head["crc"].tolist():
        raise NeedsCare


def _counts(data: bytes, starts: NDArray[np.int64], head: NDArray[np.void]) -> NDArray[np.uint32]:
    num = (head["hi"] - head["lo"]).astype(np.uint32)
    counts: NDArray[np.uint32] = _KNOWN[head["outcome"]] * num[:, None]
    mixed = np.flatnonzero(head["outcome"] == MIXED)
    if len(mixed):
        places = starts[mixed] + _HEAD.itemsize + head["name_length"][mixed] + _BLOCK_HEAD
        if int(places.max()) + _COUNTS.itemsize > len(data):
            raise NeedsCare
        counts[mixed] = _gather(data, places, _COUNTS)["counts"]
    counts[head["kind"] == Kind.EVENT] = 0
    return counts


class _Names:
    """Numbers the ids of step instances, over all windows of a segment."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def indices(
        self, data: bytes, places: NDArray[np.int64], lengths: NDArray[np.uint16]
    ) -> NDArray[np.int32]:
        """The number of the name at each place."""
        found = np.empty(len(places), np.int32)
        for length in distinct(lengths).tolist():
            rows = np.flatnonzero(lengths == length)
            if not length:
                found[rows] = self._number("")
                continue
            boxed = np.dtype([("name", f"S{length}")])
            names = _gather(data, places[rows], boxed)["name"]
            found[rows] = self._of_one_length(names, length)
        return found

    def _of_one_length(self, names: NDArray[np.bytes_], length: int) -> NDArray[np.int32]:
        letters = np.ascontiguousarray(names).view(np.uint8).reshape(len(names), length)
        weights = np.random.default_rng(length).integers(1, 1 << 62, length, np.uint64) | np.uint64(1)
        hashes = (letters * weights).sum(axis=1, dtype=np.uint64)
        _, first, where = np.unique(hashes, return_index=True, return_inverse=True)
        if not np.array_equal(letters[first][where], letters):
            raise NeedsCare  # two names with one hash
        numbers = [self._number(letters[i].tobytes().decode()) for i in first.tolist()]
        return np.array(numbers, np.int32)[where]

    def _number(self, name: str) -> int:
        return self.known.setdefault(name, len(self.known))
