"""Tasks that have run in an earlier revision of the study, and whose outputs another data set collects.

They are reset with causes of their own, so that a run collects their outputs and does not start their scripts or call
their functions. Any later reset takes that back.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from merlin.base.ranges import Range, merged
from merlin.ledger.entries import LedgerEntry, payloads
from merlin.ledger.format import Kind
from merlin.ledger.records import RESET
from merlin.ledger.resets import whence
from merlin.plan.runs import RunMap
from merlin.plan.tasks import Outcome

if TYPE_CHECKING:
    from merlin.ledger.replay import Replay
    from merlin.plan.plan import Plan

_CAUSE = "field '"  # how the cause begins if the collection of outputs failed


def badly_collected(found: Replay) -> dict[str, list[Range]]:
    """By step instance, the tasks that failed although their scripts or functions ended well."""
    tasks: dict[str, list[Range]] = {}
    for each in found.failures():
        if each.failure.exit_code == 0 and each.failure.cause.startswith(_CAUSE):
            tasks.setdefault(each.instance, []).append((each.failure.task, each.failure.task + 1))
    return {id: merged(ranges) for id, ranges in tasks.items()}


def to_collect_again(found: Replay, plan: Plan) -> dict[str, RunMap]:
    """By step instance, where the values of the tasks lie that are to be collected again: see `FROM_FILES`.

    It is 0 for all other tasks. Instances without such tasks are left out.
    """
    marks: dict[str, RunMap] = {}
    for instance in plan.instances if plan.revision else ():
        for entry, ranges in found.standing(instance.id):
            header = entry.header
            if header.kind != Kind.RANGE or header.outcome != RESET or not (place := _whence(entry)):
                continue
            marked = marks.setdefault(instance.id, RunMap(instance.num_tasks, 0))
            for lo, hi in [(header.lo, header.hi)] if ranges is None else ranges:
                marked.set(lo, hi, place)
    return marks


def ever_taken(found: Replay, plan: Plan) -> dict[str, dict[int, list[Range]]]:
    """By step instance: the tasks that were to be taken from data sets, by the revision that has put these aside.

    Tasks that may have run since are left out; for the others, the values there are still valid.
    """
    taken: dict[str, dict[int, list[Range]]] = {}
    for instance in plan.instances if plan.revision else ():
        marks: dict[int, RunMap] = {}
        for entry in chain.from_iterable(group for _, _, group in found.clusters(instance.id)):
            header = entry.header
            is_reset = header.kind == Kind.RANGE and header.outcome == RESET
            place = _whence(entry) if is_reset else 0
            if place > 0:
                marks.setdefault(place, RunMap(instance.num_tasks, 0)).set(header.lo, header.hi, 1)
            elif is_reset or header.counts[Outcome.INTERRUPTED]:  # after these, the tasks would run
                for each in marks.values():
                    each.set(header.lo, header.hi, 0)
        if marks:
            taken[instance.id] = {place: each.ranges([1]) for place, each in marks.items()}
    return taken


def _whence(entry: LedgerEntry) -> int:
    from merlin.ledger.encode import range_text, read_blocks

    ((_, payload),) = payloads([entry])
    return whence(range_text(read_blocks(payload), "cause"))
