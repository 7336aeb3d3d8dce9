"""What runs again because the records of earlier tasks are lost: somebody has moved damaged segments away."""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING

from merlin.base.ranges import Range, merged
from merlin.ledger.format import Kind
from merlin.ledger.records import RESET, RangeRecord
from merlin.ledger.resets import RUN_AGAIN, resets
from merlin.plan.lost_outcomes import reopen_after_loss

if TYPE_CHECKING:
    from merlin.ledger.replay import Replay
    from merlin.plan.plan import Plan


def resets_after_loss(found: Replay, plan: Plan) -> list[RangeRecord]:
    """Resets of the tasks that ran on others whose records are lost. Only for the start of a run."""
    return resets(reopen_after_loss(plan, found.outcomes, partial(_reset_since, found)), RUN_AGAIN)


def told(records: list[RangeRecord]) -> str:
    """One line for the user about such resets; "" if there are none."""
    if not (num := sum(each.hi - each.lo for each in records)):
        return ""
    has = "task that ran on what it recorded runs" if num == 1 else "tasks that ran on what it recorded run"
    return f"part of the ledger is lost: {num:,} {has} again, too"


def _reset_since(found: Replay, source: str, target: str) -> list[tuple[list[Range], list[Range]]]:
    """Groups of the target's tasks, each with the tasks of the source that were reset after it had run."""
    headers = [(found.order(entry)[:2], entry.header) for entry in found.entries(source)]
    reset = sorted((when, (h.lo, h.hi)) for when, h in headers if h.kind == Kind.RANGE and h.outcome == RESET)
    times = [when for when, _ in reset]  # start of the run, and attempt
    groups: dict[int, list[Range]] = {}
    for entry, ranges in found.standing(target):
        first = bisect_left(times, found.order(entry)[:2])
        own = [(entry.header.lo, entry.header.hi)] if ranges is None else ranges
        groups.setdefault(first, []).extend(own)
    return [(merged(tasks), merged(r for _, r in reset[first:])) for first, tasks in groups.items()]
