"""Tasks whose scripts have run in an earlier revision of the study, and whose outputs another data set collects.

They are reset with a cause of their own, so that a run collects their outputs and does not start their scripts. Any
later reset takes that back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from merlin.ledger.entries import LedgerEntry, payloads
from merlin.ledger.format import Kind
from merlin.ledger.records import RESET, RangeRecord
from merlin.ledger.resets import COLLECT_AGAIN
from merlin.plan.pieces import Range, merged
from merlin.plan.runs import RunMap

if TYPE_CHECKING:
    from merlin.ledger.replay import Replay
    from merlin.plan.plan import Plan

_CAUSE = "field '"  # how the causes begin that collecting gives to failures


def badly_collected(found: Replay) -> dict[str, list[Range]]:
    """By step instance, the tasks that failed although their scripts or functions ended well."""
    tasks: dict[str, list[Range]] = {}
    for each in found.failures():
        if each.failure.exit_code == 0 and each.failure.cause.startswith(_CAUSE):
            tasks.setdefault(each.instance, []).append((each.failure.task, each.failure.task + 1))
    return {id: merged(ranges) for id, ranges in tasks.items()}


def to_collect_again(found: Replay, plan: Plan) -> dict[str, RunMap]:
    """By step instance, 1 for each task that is to be collected again; only instances with such tasks are in it."""
    marks: dict[str, RunMap] = {}
    for instance in plan.instances if plan.revision else ():
        for entry, ranges in found.standing(instance.id):
            header = entry.header
            if header.kind != Kind.RANGE or header.outcome != RESET or not _is_collection(entry):
                continue
            marked = marks.setdefault(instance.id, RunMap(instance.num_tasks, 0))
            for lo, hi in [(header.lo, header.hi)] if ranges is None else ranges:
                marked.set(lo, hi, 1)
    return marks


def _is_collection(entry: LedgerEntry) -> bool:
    from merlin.ledger.encode import decode

    ((_, payload),) = payloads([entry])
    record = decode(entry.header, payload, entry.writer)
    return isinstance(record, RangeRecord) and record.cause == COLLECT_AGAIN
