"""What a study has for workers: which steps could run now, and how many tasks at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf

from msgspec.structs import replace

from merlin.plan.fit import Need
from merlin.plan.task_states import QUEUED, READY, RUNNING, WAITING, InstanceState


def needs(states: Iterable[InstanceState], queue: str | None) -> dict[str, float]:
    """What workers could run now (from a queue): by step, the seconds that a task may take, 0 if not known."""
    could = [s for s in states if s.jobs is None and (s.requeue or s.num[READY])]
    return {s.instance.step: s.need_s for s in could if queue in (None, s.instance.queue)}


def open_work(states: Iterable[InstanceState]) -> dict[tuple[str, Need], tuple[int, float]]:
    """By queue and need: tasks that workers could run at the same time, now or later, and the least time for one.

    Tasks of one depth of the graph can run together, and tasks of one sample at several depths cannot. A step with
    batch jobs of its own wants one worker, which submits them.
    """
    now, by_depth = Counter[tuple[str, Need]](), Counter[tuple[tuple[str, Need], int]]()
    least_s: dict[tuple[str, Need], float] = {}
    for state in states:
        num_now = state.num[READY] + state.num[QUEUED] + state.num[RUNNING]
        num_open = num_now + state.num[WAITING]
        kind = state.instance.queue, replace(state.need, is_pinned=False)
        need_s = state.need_s if state.jobs is None else 0.0
        if state.jobs is not None:
            num_now, num_open = min(num_now, 1), min(num_open, 1)
        if num_open:
            now[kind] += num_now
            by_depth[kind, state.rank[1]] += num_open
            least_s[kind] = min(least_s.get(kind, inf), need_s)
    most = dict(now)
    for (kind, _), num in by_depth.items():
        most[kind] = max(most[kind], num)
    return {kind: (most[kind], need_s) for kind, need_s in least_s.items()}
