"""How long the tasks of a step take: what a worker must have left of its walltime to start one. Pure.

Durations are counted in classes, four for each doubling, so a chunk of any size reports them in a few numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from merlin.batch.walltime import as_clock, walltime_seconds
from merlin.plan.plan import Scalar, StepInstance

Spread = tuple[tuple[int, int], ...]  # (class of duration, number of tasks), sorted
SHARE = 0.95  # of the ended tasks took no longer than the need
ENOUGH = 20  # tasks that must have ended; until then the step's own walltime counts
_PER_DOUBLING = 4
_SHORTEST_S = 1e-3
_LARGEST_CLASS = 200  # 2**50 seconds


def class_of(seconds: float) -> int:
    """The class of a duration; `longest_of` it is at least as long, and at most a fifth longer."""
    return min(_LARGEST_CLASS, math.ceil(_PER_DOUBLING * math.log2(max(seconds, _SHORTEST_S)) - 1e-9))


def longest_of(number: int) -> float:
    """The longest duration of a class, in seconds."""
    return float(2.0 ** (min(number, _LARGEST_CLASS) / _PER_DOUBLING))


def spread_of(durations: Iterable[tuple[float, int]]) -> Spread:
    """The spread of durations that are given as (seconds, number of tasks)."""
    return added(((class_of(seconds), num),) for seconds, num in durations)


def added(spreads: Iterable[Spread]) -> Spread:
    """Several spreads as one."""
    counts = Counter[int]()
    for spread in spreads:
        counts.update(dict(spread))
    return tuple(sorted(counts.items()))


class Durations:
    """What is known of one step: the durations of its tasks that have ended, and its own walltime."""

    __slots__ = ("_cap_s", "_counts", "_cut_off_s", "_num", "_timeout_s")

    def __init__(self, instance: StepInstance) -> None:
        self._cap_s = walltime_s(instance.resources)
        self._timeout_s = math.inf if instance.timeout_s is None else instance.timeout_s
        self._counts: dict[int, int] = {}
        self._num = 0
        self._cut_off_s = 0.0  # the longest time after which one was interrupted: they may need more

    def learn(self, spread: Spread, cut_off_s: float = 0.0) -> None:
        """Take in tasks that have ended, and how long one had run that was interrupted."""
        for number, num in spread:
            self._counts[number] = self._counts.get(number, 0) + num
            self._num += num
        self._cut_off_s = max(self._cut_off_s, cut_off_s)

    def need_s(self) -> float:
        """The seconds that a worker must have left to start a task; 0: not known, so any will do.

        95 % of the tasks that have ended took no longer. Until enough have ended, the step's walltime counts, or
        without one at least the longest time after which a task was interrupted.
        """
        learned = self._learned_s()
        if self._cap_s is not None:
            return min(self._cap_s, learned if self._num >= ENOUGH else self._cap_s, self._timeout_s)
        return min(max(learned, self._cut_off_s if self._num < ENOUGH else 0.0), self._timeout_s)

    def _learned_s(self) -> float:
        at = 0
        for number, num in sorted(self._counts.items()):
            at += num
            if at >= SHARE * self._num:
                return longest_of(number)
        return 0.0


def walltime_s(resources: dict[str, Scalar]) -> float | None:
    """The walltime of a step in seconds; None without one, or if it is a token that the shell fills in."""
    try:
        return walltime_seconds(resources["walltime"])
    except (KeyError, ValueError):
        return None


def too_short(step: str, need_s: float, left_s: float) -> str:
    """Why a step waits although workers serve it."""
    left = as_clock(max(0.0, left_s))
    return f"step {step} needs {as_clock(need_s)}; the workers have at most {left} left"
