"""The latest facts of every task as arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from merlin.ledger.encode import array_block, outcomes_of, read_blocks
from merlin.ledger.format import BlockId, Kind, Writer
from merlin.ledger.replay import LedgerEntry, Replay
from merlin.plan.tasks import NO_OUTCOME, Outcome


class TaskColumns(Struct, frozen=True, kw_only=True):
    """Facts of the tasks [lo, hi) of one step instance, n = hi - lo; zeros where nothing is recorded."""

    lo: int
    outcomes: NDArray[np.uint8]  # (n,) Outcome or NO_OUTCOME
    exit_codes: NDArray[np.int16]  # (n,) -N: killed by signal N
    seconds: NDArray[np.float32]  # (n,)
    started: NDArray[np.float64]  # (n,) epoch seconds
    attempts: NDArray[np.int32]  # (n,)
    tries: NDArray[np.uint8]  # (n,) application retries
    writers: NDArray[np.int32]  # (n,) index into `writer_table`; -1: nothing is recorded
    writer_table: list[Writer]


def task_columns(
    replay: Replay,
    instance: str,
    size: int,
    lo: int = 0,
    hi: int | None = None,
    *,
    among: Iterable[LedgerEntry] | None = None,
) -> TaskColumns:
    """The latest facts of the tasks [lo, hi) of an instance with `size` tasks.

    `among`: records of the instance with all that concern these tasks, if the caller knows them.
    """
    hi = size if hi is None else min(hi, size)
    num = hi - lo
    writer_ids: dict[Writer, int] = {}
    columns = TaskColumns(
        lo=lo,
        outcomes=np.full(num, NO_OUTCOME, np.uint8),
        exit_codes=np.zeros(num, np.int16),
        seconds=np.zeros(num, np.float32),
        started=np.zeros(num, np.float64),
        attempts=np.zeros(num, np.int32),
        tries=np.zeros(num, np.uint8),
        writers=np.full(num, -1, np.int32),
        writer_table=[],
    )
    known = replay.entries(instance) if among is None else among
    entries = [e for e in known if e.header.lo < hi and e.header.hi > lo]
    for entry, payload in replay.payloads(sorted(entries, key=replay.order)):
        writer = writer_ids.setdefault(entry.writer, len(writer_ids))
        _apply_record(columns, entry, payload, writer)
    columns.writer_table.extend(writer_ids)
    return columns


def _apply_record(columns: TaskColumns, entry: LedgerEntry, payload: bytes, writer: int) -> None:
    """Apply one record to the columns."""
    header, blocks = entry.header, read_blocks(payload)
    num = header.hi - header.lo
    first, last = max(header.lo, columns.lo), min(header.hi, columns.lo + len(columns.outcomes))
    here = slice(first - columns.lo, last - columns.lo)
    there = slice(first - header.lo, last - header.lo)
    outcomes = outcomes_of(header, blocks)[there]
    current = columns.outcomes[here]
    weak = (outcomes == Outcome.SKIPPED) | (outcomes == Outcome.INTERRUPTED)
    takes = ~(weak & (current == Outcome.OK))
    if header.kind == Kind.CHUNK:
        takes &= outcomes != NO_OUTCOME
    where: NDArray[Any] | slice = slice(None) if takes.all() else takes
    offsets = array_block(blocks, BlockId.STARTED_OFFSETS, num)
    started: Any = header.started
    if offsets is not None:  # of single precision, in which a time of today is two minutes wide
        started = header.started + offsets[there][where].astype(np.float64)
    columns.outcomes[here][where] = outcomes[where]
    columns.started[here][where] = started
    columns.attempts[here][where] = header.attempt
    columns.writers[here][where] = writer
    for block, column in (
        (BlockId.SECONDS, columns.seconds),
        (BlockId.EXIT_CODES, columns.exit_codes),
        (BlockId.TRIES, columns.tries),
    ):
        values = array_block(blocks, block, num)
        column[here][where] = 0 if values is None else values[there][where]
