"""What the steps of a study still have to do, and how long it takes: from plan, ledger and workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from merlin.plan.plan import Plan, StepInstance
from merlin.status.eta import Estimate, Slots, StepWork, estimate, slots_at_work
from merlin.status.tally import RATE_WINDOW_S, Recent, Sums, cost_of_sums

WINDOW_RECORDS = 3.0  # a window has so many times the length of an average record, but at least a minute
LONG_WINDOWS = 5.0  # the longer window is so many times as long


class Remaining(Struct, frozen=True, kw_only=True):
    """What is known of a study that runs."""

    plan: Plan
    sums: Mapping[str, Sums]  # of every step instance
    recent: Mapping[str, Recent]
    missing: Mapping[str, int]  # by step
    running: Mapping[str, int]  # by step
    num_slots: int
    step_jobs: Mapping[str, int]  # batch jobs of their own, waiting or running, by step instance
    run_started: float | None
    now: float


def estimate_of(left: Remaining) -> Estimate:
    """The time to go of each step and of the study."""
    works = {step: _work(step, instances, left) for step, instances in left.plan.by_step().items()}
    cores = {i.id: works[i.step].slots_per_task for i in left.plan.instances}
    shared = [i.id for i in left.plan.instances if works[i.step].own_slots is None]
    return estimate(list(works.values()), _slots(left.num_slots, shared, cores, left))


def _work(step: str, instances: Sequence[StepInstance], left: Remaining) -> StepWork:
    kinds: dict[str, set[str]] = {"all": set(), "same": set(), "block": set()}
    steps = {i.id: i.step for i in left.plan.instances}
    for instance in instances:
        for edge in instance.edges:
            kinds[edge.kind].add(steps[edge.source])
    after = frozenset(kinds["all"] - {step})
    cores, has_jobs = _needs(instances)
    own = None
    if has_jobs:
        ids = [i.id for i in instances]
        num_jobs = sum(left.step_jobs.get(id, 0) for id in ids)
        own = _slots(num_jobs, ids, dict.fromkeys(ids, 1), left)
    return StepWork(
        step=step,
        missing=left.missing[step],
        running=left.running.get(step, 0),
        cost=cost_of_sums(left.sums[instance.id] for instance in instances),
        slots_per_task=cores,
        after=after,
        along=frozenset((kinds["same"] | kinds["block"]) - after - {step}),
        own_slots=own,
    )


def _needs(instances: Iterable[StepInstance]) -> tuple[int, bool]:
    """Cores of a task, and whether the tasks run in batch jobs of their own."""
    cores, has_jobs = 1, False
    for instance in instances:
        if instance.resources:  # without resources, the answer needs no heavy import
            from merlin.plan.fit import need_of
            from merlin.plan.job_policy import job_policy

            cores = max(cores, need_of(instance).cores)
            has_jobs = has_jobs or job_policy(instance) is not None
    return cores, has_jobs


def _slots(num: int, ids: Sequence[str], cores: Mapping[str, int], left: Remaining) -> Slots:
    """`num` slots, and how many of them were at work lately."""
    cost = cost_of_sums(left.sums[id] for id in ids)
    if cost is None:
        return Slots(num=num)
    timed = [left.sums[id] for id in ids if left.sums[id].num_timed]
    record_s = sum(sums.busy_s for sums in timed) / sum(sums.num_timed for sums in timed)
    window_s = max(RATE_WINDOW_S, WINDOW_RECORDS * record_s)
    lately, longer = (_average(ids, cores, left, each) for each in (window_s, LONG_WINDOWS * window_s))
    return slots_at_work(num, longer if lately is None else lately, longer)


def _average(ids: Sequence[str], cores: Mapping[str, int], left: Remaining, window_s: float) -> float | None:
    """Slots at work in the window: seconds of tasks that ended in it, over its length; None: none ended."""
    since = max(left.now - window_s, left.run_started or 0.0, *(left.recent[id].kept_since for id in ids))
    ended = [(cores[id], second) for id in ids for second in left.recent[id].since(since)]
    if not ended:
        return None
    since = max(since, min(second.started for _, second in ended))
    return sum(num * second.busy_s for num, second in ended) / max(1.0, left.now - since)
