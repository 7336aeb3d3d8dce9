"""Whether a worker has a reason to stay in its allocation: decided from the registry alone. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from msgspec.structs import replace

from merlin.execution.distributed.registry import OpenWork, StudyInfo, WorkerInfo
from merlin.plan.fit import Need, num_at_once

GRACE_S = 1.5  # without a reason to stay; the next study of a script may begin in between
FIRST_S = 60.0  # the same if nobody has needed it so far: its study may be published after its start,
FIRST_ASKED_S = 5.0  # but not for one that was asked to leave when there is nothing to do
CHECK_S = 0.5  # between two looks at the registry, or longer with many workers:
CHECKS_PER_S = 50.0  # looks of all workers together
MANY = 2**53  # tasks of a study that has not yet said what it wants


def wanted(
    studies: Iterable[StudyInfo], work: Mapping[str, Sequence[OpenWork]], queue_name: Callable[[str], str]
) -> list[OpenWork]:
    """What all open studies want, with the names of the queues on the broker."""
    out = []
    for study in studies:
        said = work.get(study.study_id)
        if said is None:
            said = [OpenWork(queue=queue, num_at_once=MANY) for queue in study.queues]
        out += [replace(open, queue=queue_name(open.queue)) for open in said if open.num_at_once]
    return out


def is_needed(
    me: WorkerInfo, workers: Iterable[WorkerInfo], all_wanted: Sequence[OpenWork], now: float
) -> bool:
    """Whether there is work that `me` could do, now or later, and no other allocation that can do all of it.

    `now`: server time. If there are several allocations, idle ones leave first, and of these the one that came last.
    Workers of one allocation leave together.
    """
    mine = [
        want
        for want in all_wanted
        if want.queue in me.queues
        and want.need_s <= me.tasks_end - now
        and not _is_avoided(me, [want])
        and num_that_fit([me], want.need)
    ]
    if not mine or not me.job:
        return bool(mine)
    alive = [w for w in workers if w.is_alive and not w.is_stopping and w.name != me.name]
    if me.running or any(w.running for w in alive if w.allocation == me.allocation):
        return True
    queues, need_s = {want.queue for want in mine}, max(want.need_s for want in mine)
    able = [w for w in alive if queues <= set(w.queues) and w.tasks_end - now >= need_s]
    able = [w for w in able if not _is_avoided(w, all_wanted)]
    ranks = _ranks([*alive, me])
    ahead = [w for w in able if ranks[w.allocation] < ranks[me.allocation]]
    served = queues.union(*(w.queues for w in ahead))
    used = Fraction()  # share of what the workers ahead of this one can do
    for want in (want for want in all_wanted if want.queue in served):
        if num := num_that_fit(ahead, want.need):
            used += Fraction(want.num_at_once, num)
        elif want in mine:
            return True
    return used > 1


def num_that_fit(workers: Iterable[WorkerInfo], need: Need) -> int:
    """How many tasks with this need the workers can run at the same time."""
    machines = Counter((w.concurrency, w.cores, len(w.gpus)) for w in workers)
    num = sum(
        count * min(slots, num_at_once(need, num_cores=max(slots, cores), num_gpus=gpus))
        for (slots, cores, gpus), count in machines.items()
    )
    return max(1, num // need.nodes) if num else 0


def _is_avoided(worker: WorkerInfo, wants: Iterable[OpenWork]) -> bool:
    return any(worker.place in want.avoid for want in wants)


def _ranks(workers: Iterable[WorkerInfo]) -> dict[tuple[str, str], tuple[bool, bool, float, tuple[str, str]]]:
    """The sort keys of the allocations: those that stay longest come first, after workers outside of an allocation."""
    members: dict[tuple[str, str], list[WorkerInfo]] = {}
    for worker in workers:
        members.setdefault(worker.allocation, []).append(worker)
    return {
        where: (bool(where[1]), not any(w.running for w in group), min(w.started for w in group), where)
        for where, group in members.items()
    }


class Idleness:
    """Since when a worker has had no reason to stay."""

    def __init__(self, now: float, first_s: float = FIRST_S) -> None:
        self._grace_s = first_s
        self._needed_at, self._check_at = now, now

    def busy(self, now: float) -> None:
        """Note that the worker runs something, or is needed."""
        self._needed_at, self._grace_s = now, GRACE_S

    def is_due(self, now: float) -> bool:
        """Whether it is time to check if the worker is needed."""
        return now >= self._check_at

    def checked(self, is_needed: bool, now: float, num_workers: int) -> bool:
        """Note the result of a check; returns whether the worker leaves."""
        self._check_at = now + max(CHECK_S, num_workers / CHECKS_PER_S)
        if is_needed:
            self.busy(now)
        return now - self._needed_at >= self._grace_s
