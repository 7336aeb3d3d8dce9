"""Read segments while other processes write them: valid records are used, damage is reported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from merlin.base.files import write_text
from merlin.errors import LedgerError
from merlin.ledger.format import (
    FRAME_BYTES,
    RECORD_MAGIC,
    SUFFIX,
    RecordHeader,
    SegmentHeader,
    parse_records,
    parse_segment_header,
    payload_in,
)

WINDOW_BYTES = 16 << 20
EARLIER = "earlier"  # the file that names the ledger before this one, relative to its own directory
_HEADER_BYTES = 64 << 10
_SAMPLE_BYTES = 256 << 10
_MANY = 20_000  # records
_LEAST_BYTES = 60  # of a record


class DamagedBytes(Struct, frozen=True):
    """The bytes [offset, offset + size) of a segment, which are not a valid record."""

    path: Path
    offset: int
    size: int
    torn: bool  # at the end of the segment: a write that is not complete (yet)

    def __str__(self) -> str:
        what = "an incomplete record at the end" if self.torn else "a damaged record"
        return f"{self.path}: {what}, {self.size} bytes at offset {self.offset}"


class Segment:
    """One segment file; `read_new` returns what was appended since the last call."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        self.header: SegmentHeader | None = None  # None while the header is not complete
        self.position = 0  # everything before it has been read
        self.damage: list[DamagedBytes] = []
        self.tail: DamagedBytes | None = None
        self._names: dict[bytes, str] = {}

    def read_new(self) -> list[RecordHeader]:
        """Headers of the records appended since the last call, in file order.

        Raises LedgerError for another format or version, FileNotFoundError if somebody removed the file.
        """
        return [header for batch in self.batches() for header in batch]

    def batches(self) -> Iterator[list[RecordHeader]]:
        """The same headers as `read_new`, a few megabytes of records at a time."""
        with self.path.open("rb", buffering=0) as file:
            fd = file.fileno()
            size = os.fstat(fd).st_size
            if self.header is None and not self.read_header(fd, size):
                return
            if size > self.position:
                yield from self._read_records(fd, size)

    def read_header(self, fd: int, size: int) -> bool:
        """Read the header of the file; False as long as it is not complete."""
        data = os.pread(fd, _HEADER_BYTES, 0)
        parsed = parse_segment_header(data, str(self.path))
        if parsed is None and size > _HEADER_BYTES:
            parsed = parse_segment_header(_pread_all(fd, size, 0), str(self.path))
        if parsed is None:
            self.tail = DamagedBytes(self.path, 0, size, torn=True)
            return False
        self.header, self.position = parsed
        self.tail = None
        return True

    def _read_records(self, fd: int, size: int) -> Iterator[list[RecordHeader]]:
        self.tail = None
        window = WINDOW_BYTES
        while self.position < size:
            data = _pread_all(fd, min(window, size - self.position), self.position)
            parsed = parse_records(data, 0, self.position, self._names)
            self.position += parsed.end
            yield parsed.records
            if len(data) < min(window, size - self.position + parsed.end):
                break  # the file was cut while we read it; the next call sees what is left
            if parsed.end == len(data):
                continue
            if 0 < parsed.needs <= size - self.position:
                window = max(WINDOW_BYTES, parsed.needs)
            else:
                found = self._resynchronise(fd, size)
                if not found:
                    break
                yield found

    def _resynchronise(self, fd: int, size: int) -> list[RecordHeader]:
        """Skip bytes that are not a record. Returns the valid records that follow, if there are any."""
        rest = _pread_all(fd, size - self.position, self.position)
        at = rest.find(RECORD_MAGIC, 1)
        while at >= 0:
            parsed = parse_records(rest, at, self.position, self._names)
            if parsed.records:
                self.damage.append(DamagedBytes(self.path, self.position, at, torn=False))
                self.position += parsed.end
                return parsed.records
            at = rest.find(RECORD_MAGIC, at + 1)
        self.tail = DamagedBytes(self.path, self.position, len(rest), torn=True)
        return []

    def open(self) -> BinaryIO:
        """The file, for reading. Raises LedgerError if the segment was removed."""
        try:
            return self.path.open("rb", buffering=0)
        except FileNotFoundError as e:
            raise LedgerError(f"{self.path} was removed while it was read; read the ledger again") from e

    def payloads(self, headers: list[RecordHeader]) -> Iterator[tuple[RecordHeader, bytes]]:
        """The bytes of records of this segment. Raises LedgerError if it was removed, or as `payload`."""
        with self.open() as file:
            for header in headers:
                yield header, self.payload(file, header)

    def payload(self, file: BinaryIO, header: RecordHeader) -> bytes:
        """The bytes of a record. Raises LedgerError if they have changed."""
        data = os.pread(file.fileno(), FRAME_BYTES + header.length, header.offset - FRAME_BYTES)
        payload = payload_in(data)
        if payload is None:
            raise LedgerError(
                f"{self.path} was changed at byte {header.offset} while it was read; read the ledger again: "
                "tasks whose outcome only stood there count as missing"
            )
        return payload


def _pread_all(fd: int, size: int, offset: int) -> bytes:
    """Up to `size` bytes; fewer only at the end of the file."""
    parts: list[bytes] = []
    while size > 0 and (data := os.pread(fd, size, offset)):
        parts.append(data)
        size -= len(data)
        offset += len(data)
    return b"".join(parts)


def segment_paths(directory: Path) -> list[Path]:
    """The segment files of a ledger and of the ledgers that it goes on from, each in order of names.

    There are none if the directory does not exist. The names of segments are random: no two ledgers share one.
    """
    return [path for each in lineage(directory) for path in own_segment_paths(each)]


def lineage(directory: Path) -> list[Path]:
    """The directories of the ledgers that this one goes on from, the oldest first, and its own."""
    found = [Path(directory)]
    while earlier := _earlier(found[0]):
        if earlier in found:
            raise LedgerError(f"{found[0] / EARLIER} leads back to where it stands; put it back as it was")
        found.insert(0, earlier)
    return found


def _earlier(directory: Path) -> Path | None:
    try:
        name = (directory / EARLIER).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerError(f"cannot read {directory / EARLIER}: {error}") from error
    return Path(os.path.normpath(directory / name))


def write_lineage(directory: Path, earlier: Path) -> None:
    """Let the ledger in `directory` go on from the one in `earlier`. Raises OSError."""
    write_text(directory / EARLIER, os.path.relpath(earlier, directory) + "\n")


def own_segment_paths(directory: Path) -> list[Path]:
    """The segment files in one directory, in order of names."""
    try:
        with os.scandir(directory) as entries:
            names = sorted(e.name for e in entries if e.name.endswith(SUFFIX))
    except FileNotFoundError:
        return []
    except OSError as e:
        raise LedgerError(f"cannot read the ledger {directory}: {e.strerror}") from e
    return [directory / name for name in names]


def segments(directory: Path) -> list[tuple[Path, SegmentHeader]]:
    """The segments and their writers. A restart needs them to find processes that are left over from a run."""
    found: list[tuple[Path, SegmentHeader]] = []
    for segment in map(Segment, segment_paths(Path(directory))):
        with suppress(FileNotFoundError), segment.path.open("rb", buffering=0) as file:  # removed meanwhile
            segment.read_header(file.fileno(), os.fstat(file.fileno()).st_size)
        if segment.header is not None:
            found.append((segment.path, segment.header))
    return found


def has_many_records(directory: Path) -> bool:
    """True if there are so many records that reading their headers as arrays saves more time than it costs.

    It is guessed from the sizes of the segments, and from the first records of the largest.
    """
    try:
        sizes = {path: path.stat().st_size for path in segment_paths(directory)}
        total = sum(sizes.values())
        if total < _MANY * _LEAST_BYTES:
            return False
        with max(sizes, key=lambda path: sizes[path]).open("rb") as file:
            data = file.read(_SAMPLE_BYTES)
    except OSError:  # one was removed meanwhile
        return False
    return total * data.count(RECORD_MAGIC) > _MANY * len(data)
