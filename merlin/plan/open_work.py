"""What a study has for workers: which steps could run now, and how many tasks at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf

from merlin.plan.task_states import QUEUED, READY, RUNNING, WAITING, InstanceState


def needs(states: Iterable[InstanceState], queue: str | None) -> dict[str, float]:
    """What workers could run now (from a queue): per step, the seconds that a task may take, 0 if not known."""
    could = [s for s in states if s.jobs is None and (s.requeue or s.num[READY])]
    return {s.instance.step: s.need_s for s in could if queue in (None, s.instance.queue)}


def open_work(states: Iterable[InstanceState]) -> dict[str, tuple[int, float]]:
    """By queue: tasks that workers could run at the same time, now or later, and the least that they need.

    Tasks of one depth of the graph can run together, and tasks of one sample at several depths cannot. A step with
    batch jobs of its own wants one worker, which submits them.
    """
    now, by_depth, least_s = Counter[str](), Counter[tuple[str, int]](), dict[str, float]()
    for state in states:
        num_now = state.num[READY] + state.num[QUEUED] + state.num[RUNNING]
        num_open, queue = num_now + state.num[WAITING], state.instance.queue
        need_s = state.need_s if state.jobs is None else 0.0
        if state.jobs is not None:
            num_now, num_open = min(num_now, 1), min(num_open, 1)
        if num_open:
            now[queue] += num_now
            by_depth[queue, state.rank[1]] += num_open
            least_s[queue] = min(least_s.get(queue, inf), need_s)
    most = {
        queue: max(now[queue], max(num for (name, _), num in by_depth.items() if name == queue))
        for queue in least_s
    }
    return {queue: (most[queue], need_s) for queue, need_s in least_s.items()}
