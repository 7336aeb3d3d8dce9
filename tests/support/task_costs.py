"""The cost of tasks from the times of their records, one by one: what the sums of a ledger have to agree with."""

from __future__ import annotations

import math
from collections.abc import Iterable

from merlin.status.eta import Cost


def cost_of(records: Iterable[tuple[int, float]]) -> Cost | None:
    """The cost of tasks by (number of tasks, seconds that they took together); None without a task.

    The averages of records are taken to vary as averages of so many single tasks do. With few records, tasks are taken
    to differ by as much as their mean time.
    """
    timed = [(num, seconds) for num, seconds in records if num and seconds > 0]
    if not timed:
        return None
    tasks = sum(num for num, _ in timed)
    mean_s = sum(seconds for _, seconds in timed) / tasks
    squares = sum(num * (seconds / num - mean_s) ** 2 for num, seconds in timed)
    return Cost(
        num=tasks,
        mean_s=mean_s,
        deviation_s=math.sqrt((squares + mean_s**2) / len(timed)),
        longest_s=max(seconds for _, seconds in timed),
    )
