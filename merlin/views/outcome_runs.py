"""The outcomes of a step instance's tasks as runs in arrays: counting and finding takes no loop over tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from merlin.plan.runs import RunMap
from merlin.plan.tasks import FAILURES, Outcome

Array = np.ndarray[Any, Any]

OUTCOMES = ("ok", "failed", "skipped", "missing")
OK, FAILED, SKIPPED, MISSING = range(4)  # indices into OUTCOMES

# by value of a run map, which is a byte; interrupted tasks count as missing, like tasks without any record
_INDEX = np.full(256, MISSING, np.int8)
_INDEX[Outcome.OK], _INDEX[Outcome.SKIPPED] = OK, SKIPPED
_INDEX[list(FAILURES)] = FAILED


class OutcomeRuns:
    """The outcomes of consecutive tasks at one moment."""

    def __init__(self, starts: Array, kinds: Array) -> None:
        """`starts` (R + 1,): first task of each run, and the number of tasks; `kinds` (R,): indices into OUTCOMES."""
        self._starts, self._kinds = starts, kinds
        self._sums: dict[int, Array] = {}

    @property
    def num_tasks(self) -> int:
        return int(self._starts[-1])

    def counts_between(self, bounds: Array) -> Array:
        """Tasks by outcome, (n, 4), in the n stretches between n + 1 ascending task numbers."""
        return np.stack([np.diff(self._num_below(kind, bounds)) for kind in range(len(OUTCOMES))], axis=1)

    def _num_below(self, kind: int, tasks: Array) -> Array:
        """How many tasks with this outcome there are below each of these numbers."""
        if kind not in self._sums:
            lengths = np.where(self._kinds == kind, np.diff(self._starts), 0)
            self._sums[kind] = np.concatenate([[0], np.cumsum(lengths)])
        if not len(self._kinds):
            return np.zeros(len(tasks), np.int64)
        run = np.clip(np.searchsorted(self._starts, tasks, side="right") - 1, 0, len(self._kinds) - 1)
        inside = np.where(self._kinds[run] == kind, tasks - self._starts[run], 0)
        below: Array = self._sums[kind][run] + inside
        return below

    def outcome(self, task: int) -> str:
        """The word for how a task has ended."""
        return OUTCOMES[self._kinds[int(np.searchsorted(self._starts, task, side="right")) - 1]]

    def ranges(self, outcome: str, first: int = 0) -> Iterator[tuple[int, int]]:
        """The tasks with this outcome ("": with any) from the task `first` on, as ranges in order."""
        if not outcome:
            if first < self.num_tasks:
                yield first, self.num_tasks
            return
        begin = max(0, int(np.searchsorted(self._starts, first, side="right")) - 1)
        kind = OUTCOMES.index(outcome)
        for run in np.flatnonzero(self._kinds[begin:] == kind):
            lo, hi = self._starts[begin + run], self._starts[begin + run + 1]
            if hi > first:
                yield max(int(lo), first), int(hi)


def runs_of_map(outcomes: RunMap) -> OutcomeRuns:
    """The outcomes in a map, as they are now."""
    starts, values = outcomes.columns()
    return OutcomeRuns(np.array([*starts, outcomes.size], np.int64), _INDEX[np.array(values, np.uint8)])


def join_runs(parts: Sequence[OutcomeRuns]) -> OutcomeRuns:
    """The tasks of several instances one after another."""
    firsts = np.cumsum([0, *(part.num_tasks for part in parts)])
    starts = [part._starts[:-1] + first for part, first in zip(parts, firsts, strict=False)]
    kinds = [part._kinds for part in parts]
    none = np.empty(0, np.int8)
    return OutcomeRuns(np.concatenate([*starts, firsts[-1:]]), np.concatenate([none, *kinds]))
