"""The outcomes of one record as runs; no NumPy here.

A record stores every failure as FAILED, with its exit code. For the decision what may run next, a task that failed by
its own choice (exit code 101) counts as SOFT_FAILED.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from merlin.base.ranges import Range
from merlin.ledger.format import MIXED, BlockId, Encoding, Kind, RecordHeader, iter_blocks, iter_runs
from merlin.plan.pieces import Run
from merlin.plan.tasks import Outcome, ReturnCode

_CHOSEN = struct.pack("<h", ReturnCode.SOFT_FAIL)


def needs_payload(header: RecordHeader) -> bool:
    """Return whether the outcomes cannot be known from the header alone."""
    return header.outcome == MIXED or (header.kind == Kind.CHUNK and header.outcome == Outcome.FAILED)


def runs_of_payload(header: RecordHeader, payload: bytes) -> list[Run]:
    """The outcomes of a record that needs its payload, in task numbers."""
    num, has_failed = header.hi - header.lo, bool(header.counts[Outcome.FAILED])
    runs: Iterable[Run] = [(0, num, header.outcome)]
    for block, encoding, data in iter_blocks(payload):
        if block == BlockId.OUTCOMES:
            runs = iter_runs(encoding, data, num)
            if not has_failed:
                break
        elif block == BlockId.EXIT_CODES:
            runs = _with_choices(runs, _chosen(encoding, data, num))
            break
    return [(header.lo + a, header.lo + b, value) for a, b, value in runs]


def has_soft_failures(header: RecordHeader, payload: bytes) -> bool:
    num = header.hi - header.lo
    return any(
        block == BlockId.EXIT_CODES and bool(_chosen(encoding, data, num))
        for block, encoding, data in iter_blocks(payload)
    )


def _chosen(encoding: Encoding, data: bytes, num: int) -> list[Range]:
    """Tasks with the exit code of a soft failure."""
    if _CHOSEN not in data:
        return []
    return [(lo, hi) for lo, hi, code in iter_runs(encoding, data, num, "h") if code == ReturnCode.SOFT_FAIL]


def _with_choices(runs: Iterable[Run], chosen: list[Range]) -> Iterator[Run]:
    """Turn failures inside the chosen ranges into soft failures."""
    i = 0
    for lo, hi, value in runs:
        if value != Outcome.FAILED:
            yield lo, hi, value
            continue
        while i < len(chosen) and chosen[i][1] <= lo:
            i += 1
        at, k = lo, i
        while k < len(chosen) and chosen[k][0] < hi:
            a, b = max(at, chosen[k][0]), min(hi, chosen[k][1])
            if at < a:
                yield at, a, Outcome.FAILED
            yield a, b, Outcome.SOFT_FAILED
            at, k = b, k + 1
        if at < hi:
            yield at, hi, Outcome.FAILED
