"""Decide which of several records about one task counts. Pure: headers and runs in, a map out.

Records are ordered by the start of their run, then attempt (the fencing token), then the time they were
written. A later one counts, with one exception: a task that ended ok stays ok if a later record is interrupted
or skipped.
"""

from __future__ import annotations

from collections.abc import Iterator

from merlin.plan.pieces import Run
from merlin.plan.runs import RunMap
from merlin.plan.tasks import NO_OUTCOME, Outcome

_WEAK = frozenset((int(Outcome.SKIPPED), int(Outcome.INTERRUPTED)))


def effective(current: RunMap, run: Run) -> Iterator[tuple[int, int]]:
    """The parts of `run` that take effect over `current`."""
    lo, hi, value = run
    if value not in _WEAK:
        yield lo, hi
        return
    yield from current.ranges([v for v in (*Outcome, NO_OUTCOME) if v != Outcome.OK], lo, hi)


def apply_run(current: RunMap, run: Run, reset: bool = False) -> None:
    """Set one run of a record's outcomes. NO_OUTCOME changes nothing, unless the record is a reset."""
    if run[2] == NO_OUTCOME and not reset:
        return
    for lo, hi in effective(current, run):
        current.set(lo, hi, run[2])
