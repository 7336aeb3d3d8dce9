"""Convert records to bytes and back: the arrays inside a record, and the causes and tails of its failures."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from merlin.ledger.entries import event_of
from merlin.ledger.format import (
    COUNTS,
    MIXED,
    BlockData,
    BlockId,
    Encoding,
    Kind,
    RecordFields,
    RecordHeader,
    Writer,
    iter_blocks,
)
from merlin.ledger.records import (
    MAX_CAUSE_CHARS,
    MAX_TAIL_CHARS,
    ChunkRecord,
    Failure,
    RangeRecord,
    Record,
)
from merlin.ledger.signature import normalise, signature_of
from merlin.plan.tasks import NO_OUTCOME, Outcome

TAILS_PER_CAUSE = 3  # in one record
TAILS_PER_WRITER = 20  # of one cause of one step instance, over all records of a writer
MAX_CAUSES = 256  # different causes in one record; after these, causes that differ only in values share one
MAX_KINDS = 512  # causes in one record with those shared ones; the others are counted under OTHER
OTHER = ("other causes", "")

_DTYPES: dict[BlockId, np.dtype[Any]] = {
    BlockId.OUTCOMES: np.dtype("<u1"),
    BlockId.SECONDS: np.dtype("<f4"),
    BlockId.STARTED_OFFSETS: np.dtype("<f4"),
    BlockId.EXIT_CODES: np.dtype("<i2"),
    BlockId.TRIES: np.dtype("<u1"),
    BlockId.FAILURE_TASKS: np.dtype("<u4"),
    BlockId.FAILURE_CAUSES: np.dtype("<u2"),
}

Cause = tuple[str, str]  # (cause, signature)
Array = NDArray[Any]


def pack(block: BlockId, values: Array) -> BlockData:
    """The shortest encoding of a non-empty array."""
    dtype = _DTYPES[block]
    values = np.ascontiguousarray(values, dtype=dtype)
    changes = np.flatnonzero(values[1:] != values[:-1])
    if not len(changes):
        return block, Encoding.CONSTANT, values[:1].tobytes()
    wide = len(values) > 0xFFFF
    num_runs = len(changes) + 1
    if dtype.kind != "f" and 4 + num_runs * ((4 if wide else 2) + dtype.itemsize) < values.nbytes:
        bounds = np.concatenate(([0], changes + 1, [len(values)]))
        lengths = np.diff(bounds).astype("<u4" if wide else "<u2")
        data = struct.pack("<I", num_runs) + lengths.tobytes() + values[bounds[:-1]].tobytes()
        return block, Encoding.RLE32 if wide else Encoding.RLE16, data
    return block, Encoding.RAW, values.tobytes()


def unpack(block: BlockId, encoding: Encoding, data: bytes, num: int) -> Array:
    """The array of `num` elements that `pack` was given."""
    dtype = _DTYPES[block]
    if encoding is Encoding.RAW:
        return np.frombuffer(data, dtype=dtype)
    if encoding is Encoding.CONSTANT:
        return np.broadcast_to(np.frombuffer(data, dtype), (num,))
    (num_runs,) = struct.unpack_from("<I", data)
    lengths_dtype = np.dtype("<u2" if encoding is Encoding.RLE16 else "<u4")
    lengths = np.frombuffer(data, lengths_dtype, num_runs, 4)
    values = np.frombuffer(data, dtype, num_runs, 4 + lengths.nbytes)
    return np.repeat(values, lengths)


class TailBudget:
    """Decides which tails a writer keeps, so that a million equal failures do not fill the disk."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Cause], int] = {}

    def choose(self, instance: str, failures: list[tuple[Failure, Cause]]) -> list[Failure]:
        chosen: list[Failure] = []
        here: dict[Cause, int] = {}
        for failure, cause in failures:
            total = self._kept.get((instance, cause), 0)
            if failure.tail and here.get(cause, 0) < TAILS_PER_CAUSE and total < TAILS_PER_WRITER:
                here[cause] = here.get(cause, 0) + 1
                self._kept[instance, cause] = total + 1
                chosen.append(failure)
        return chosen


def encode(record: Record, now: float, budget: TailBudget) -> tuple[RecordFields, list[BlockData]]:
    if isinstance(record, ChunkRecord):
        return _encode_chunk(record, now, budget)
    if isinstance(record, RangeRecord):
        started = now if record.started is None else record.started
        fields = RecordFields(
            Kind.RANGE, record.outcome, record.instance, record.attempt, record.lo, record.hi, started, 0.0
        )
        detail = {"cause": record.cause} if record.cause else {}
        if record.tail:
            detail["tail"] = record.tail[-MAX_TAIL_CHARS:]
        return fields, [_json_block(BlockId.DETAIL, detail)] if detail else []
    time = now if record.time is None else record.time
    event = _json_block(BlockId.DETAIL, {"kind": record.kind, "data": record.data})
    return RecordFields(Kind.EVENT, NO_OUTCOME, "", 0, 0, 0, time, 0.0), [event]


def _encode_chunk(
    record: ChunkRecord, now: float, budget: TailBudget
) -> tuple[RecordFields, list[BlockData]]:
    num = record.hi - record.lo
    if num < 1 or len(record.outcomes) != num or len(record.seconds) != num:
        raise ValueError(f"the arrays of a record of [{record.lo}, {record.hi}) must have {num} elements")
    elapsed = now - record.started if record.elapsed_s is None else record.elapsed_s
    outcomes = pack(BlockId.OUTCOMES, record.outcomes)
    blocks: list[BlockData] = []
    outcome = MIXED
    if outcomes[1] is Encoding.CONSTANT:
        outcome = outcomes[2][0]
    else:
        counts = np.bincount(np.asarray(record.outcomes, np.uint8), minlength=256)[:4]
        blocks += [(BlockId.COUNTS, Encoding.RAW, COUNTS.pack(*counts.tolist())), outcomes]
    blocks.append(pack(BlockId.SECONDS, record.seconds))
    if record.started_offsets is not None and num > 1:
        blocks.append(pack(BlockId.STARTED_OFFSETS, record.started_offsets))
    exit_codes = _exit_codes(record)
    if exit_codes is not None and np.any(exit_codes):
        blocks.append(pack(BlockId.EXIT_CODES, exit_codes))
    if record.tries is not None and record.tries.any():
        blocks.append(pack(BlockId.TRIES, record.tries))
    if record.failures:
        blocks += _failure_blocks(record, budget)
    fields = RecordFields(
        Kind.CHUNK, outcome, record.instance, record.attempt, record.lo, record.hi, record.started, elapsed
    )
    return fields, blocks


def _exit_codes(record: ChunkRecord) -> Array | None:
    if record.exit_codes is not None or not record.failures:
        return record.exit_codes
    codes = np.zeros(record.hi - record.lo, np.int16)
    for failure in record.failures:
        codes[failure.task - record.lo] = failure.exit_code
    return codes


def _failure_blocks(record: ChunkRecord, budget: TailBudget) -> list[BlockData]:
    failures = sorted(record.failures, key=lambda f: f.task)
    causes = _causes(failures)
    table = {cause: index for index, cause in enumerate(dict.fromkeys(causes))}
    tasks = np.array([f.task - record.lo for f in failures], np.uint32)
    blocks: list[BlockData] = []
    if not np.array_equal(tasks, np.flatnonzero(np.asarray(record.outcomes) == Outcome.FAILED)):
        blocks.append((BlockId.FAILURE_TASKS, Encoding.RAW, tasks.astype("<u4").tobytes()))
    blocks.append(pack(BlockId.FAILURE_CAUSES, np.array([table[c] for c in causes])))
    blocks.append(_json_block(BlockId.CAUSES, list(table)))
    kept = budget.choose(record.instance, list(zip(failures, causes, strict=True)))
    if kept:
        tails = json.dumps([[f.task - record.lo, f.tail[-MAX_TAIL_CHARS:]] for f in kept])
        blocks.append((BlockId.TAILS, Encoding.RAW, zlib.compress(tails.encode(), 6)))
    return blocks


def _causes(failures: list[Failure]) -> list[Cause]:
    """The cause of each failure, without its values after many of the same kind."""
    known: dict[Cause, int] = {}  # with the exit code of the first
    kinds: set[tuple[str, str, int]] = set()
    causes: list[Cause] = []
    for failure in failures:
        cause = (failure.cause[:MAX_CAUSE_CHARS], signature_of(failure.tail))
        if cause not in known and len(known) >= MAX_CAUSES:
            kinds = kinds or {_kind(each, code) for each, code in known.items()}
            kind = _kind(cause, failure.exit_code)
            if kind in kinds:
                cause = kind[:2]
            elif len(known) < MAX_KINDS:
                kinds.add(kind)
            else:
                cause = OTHER
        known.setdefault(cause, failure.exit_code)
        causes.append(cause)
    return causes


def _kind(cause: Cause, exit_code: int) -> tuple[str, str, int]:
    return normalise(cause[0]), cause[1], exit_code


def _json_block(block: BlockId, value: object) -> BlockData:
    return block, Encoding.RAW, json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()


Blocks = Mapping[int, tuple[Encoding, bytes]]


def read_blocks(payload: bytes) -> Blocks:
    """The blocks of a record by id; unknown ids are kept, so that newer writers may add some."""
    return {block: (encoding, data) for block, encoding, data in iter_blocks(payload)}


def array_block(blocks: Blocks, block: BlockId, num: int) -> Array | None:
    found = blocks.get(block)
    return None if found is None else unpack(block, found[0], found[1], num)


def outcomes_of(header: RecordHeader, blocks: Blocks) -> NDArray[np.uint8]:
    num = header.hi - header.lo
    if header.outcome != MIXED:
        return np.broadcast_to(np.uint8(header.outcome), (num,))
    outcomes = array_block(blocks, BlockId.OUTCOMES, num)
    assert outcomes is not None
    return outcomes


class FailureTable(NamedTuple):
    """The failures of one record as columns with `num` entries, ordered by task."""

    tasks: Array  # (num,) task numbers
    causes: list[Cause]
    cause_indices: Array  # (num,) into `causes`
    exit_codes: Array  # (num,)
    tails: dict[int, str]  # by task; not every tail is kept


def failure_table(header: RecordHeader, payload: bytes) -> FailureTable:
    blocks = read_blocks(payload)
    num = header.hi - header.lo
    if header.kind == Kind.RANGE and header.outcome == Outcome.FAILED:
        none = np.broadcast_to(np.int16(0), (num,))
        tail = range_text(blocks, "tail")
        tails = {header.lo: tail} if tail else {}
        return FailureTable(
            np.arange(header.lo, header.hi), [(range_text(blocks, "cause"), "")], none, none, tails
        )
    if BlockId.FAILURE_TASKS in blocks:
        offsets = np.frombuffer(blocks[BlockId.FAILURE_TASKS][1], "<u4").astype(np.int64)
    else:
        offsets = np.flatnonzero(outcomes_of(header, blocks) == Outcome.FAILED)
    all_codes = array_block(blocks, BlockId.EXIT_CODES, num)
    exit_codes = np.zeros(len(offsets), np.int16) if all_codes is None else all_codes[offsets]
    indices = array_block(blocks, BlockId.FAILURE_CAUSES, len(offsets))
    if indices is None:  # the writer gave no causes
        return FailureTable(header.lo + offsets, [("", "")], np.zeros(len(offsets), np.int16), exit_codes, {})
    causes = [(cause, signature) for cause, signature in json.loads(blocks[BlockId.CAUSES][1])]
    tails = json.loads(zlib.decompress(blocks[BlockId.TAILS][1])) if BlockId.TAILS in blocks else []
    return FailureTable(
        header.lo + offsets, causes, indices, exit_codes, {header.lo + offset: tail for offset, tail in tails}
    )


def failures_of(header: RecordHeader, payload: bytes) -> list[Failure]:
    """The failures of a record, ordered by task, with the tails that were kept."""
    table = failure_table(header, payload)
    columns = zip(table.tasks.tolist(), table.cause_indices.tolist(), table.exit_codes.tolist(), strict=True)
    return [
        Failure(
            task=task,
            cause=table.causes[index][0],
            signature=table.causes[index][1],
            exit_code=code,
            tail=table.tails.get(task, ""),
        )
        for task, index, code in columns
    ]


def range_text(blocks: Blocks, key: Literal["cause", "tail"]) -> str:
    """A text of a range record; "" if it has none."""
    return str(json.loads(blocks[BlockId.DETAIL][1]).get(key, "")) if BlockId.DETAIL in blocks else ""


def decode(header: RecordHeader, payload: bytes, writer: Writer) -> Record:
    """The record that was written, with shortened tails and its failures ordered by task."""
    if header.kind == Kind.EVENT:
        return event_of(header, payload, writer)
    blocks = read_blocks(payload)
    if header.kind == Kind.RANGE:
        return RangeRecord(
            instance=header.instance, lo=header.lo, hi=header.hi, outcome=header.outcome,
            cause=range_text(blocks, "cause"), tail=range_text(blocks, "tail"), attempt=header.attempt,
            started=header.started, worker=writer.worker, host=writer.host,
        )  # fmt: skip
    num = header.hi - header.lo
    seconds = array_block(blocks, BlockId.SECONDS, num)
    assert seconds is not None
    return ChunkRecord(
        instance=header.instance, lo=header.lo, hi=header.hi, attempt=header.attempt, started=header.started,
        elapsed_s=header.elapsed_s, outcomes=outcomes_of(header, blocks), seconds=seconds,
        started_offsets=array_block(blocks, BlockId.STARTED_OFFSETS, num),
        exit_codes=array_block(blocks, BlockId.EXIT_CODES, num), tries=array_block(blocks, BlockId.TRIES, num),
        failures=tuple(failures_of(header, payload)) if BlockId.CAUSES in blocks else (),
        worker=writer.worker, host=writer.host,
    )  # fmt: skip
