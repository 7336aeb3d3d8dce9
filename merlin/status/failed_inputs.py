"""The inputs of tasks that failed, beside those of tasks of the same step that ended ok."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from merlin.errors import SamplesError, WorkspaceError
from merlin.ledger.replay import Replay
from merlin.plan.plan import StepInstance
from merlin.plan.tasks import Outcome
from merlin.status.input_ranges import Floats, InputRange, Population, numbers, suspicious_ranges
from merlin.workspace.directory import Workspace

MAX_TASKS = 20_000  # of each kind that are looked at,
MAX_TEXT_ROWS = 2000  # or fewer, where samples are in a file of text, which is slow to read

Tasks = NDArray[np.int64]


class StepInputs:
    """The inputs of one step's tasks. The inputs of tasks that ended ok are read only once."""

    def __init__(self, workspace: Workspace, state: Replay, instances: Sequence[StepInstance]) -> None:
        self._workspace, self._instances = workspace, instances
        self._ok = [state.outcomes_of(i.id).ranges((Outcome.OK,)) for i in instances]
        self._num_ok = sum(hi - lo for ranges in self._ok for lo, hi in ranges)
        self._of_ok: Mapping[str, Floats] | None = None
        self._random = np.random.default_rng(0)
        self._limit = MAX_TASKS
        with suppress(SamplesError, WorkspaceError, OSError):
            if any(i.per_sample for i in instances) and not workspace.samples().known_numeric:
                self._limit = MAX_TEXT_ROWS

    def ranges(self, failed: Mapping[str, Tasks]) -> list[InputRange]:
        """The ranges of inputs that go with the failure of these tasks, by step instance."""
        num_failed = sum(len(tasks) for tasks in failed.values())
        if self._of_ok is None:
            self._of_ok = self._values(self._some_ok())
        chosen = _some(num_failed, self._limit, self._random)
        each, at = [], 0
        for instance in self._instances:
            tasks = failed.get(instance.id, np.zeros(0, np.int64))
            each.append(np.sort(tasks[chosen[(chosen >= at) & (chosen < at + len(tasks))] - at]))
            at += len(tasks)
        return suspicious_ranges(
            Population(failed=self._values(each), ok=self._of_ok, num_failed=num_failed, num_ok=self._num_ok)
        )

    def _some_ok(self) -> list[Tasks]:
        """Tasks that ended ok, by instance: all of them, or a random choice."""
        chosen = _some(self._num_ok, self._limit, self._random)
        each, at = [], 0
        for ranges in self._ok:
            starts = np.array([lo for lo, _ in ranges], np.int64)
            ends = np.cumsum([hi - lo for lo, hi in ranges], dtype=np.int64)
            num = int(ends[-1]) if len(ends) else 0
            here = chosen[(chosen >= at) & (chosen < at + num)] - at
            which = np.searchsorted(ends, here, "right")
            before = np.append(0, ends)[which] if len(ends) else here
            each.append(starts[which] + here - before if len(ends) else here)
            at += num
        return each

    def _values(self, tasks: Sequence[Tasks]) -> dict[str, Floats]:
        """The numeric inputs of these tasks, by name: the samples' columns, and the parameters."""
        parts: dict[str, list[Floats]] = {}
        for instance, these in zip(self._instances, tasks, strict=True):
            for name, values in self._inputs(instance, these).items():
                parts.setdefault(name, []).append(values)
        complete = {name: found for name, found in parts.items() if len(found) == len(self._instances)}
        return {name: np.concatenate(found) for name, found in complete.items()}

    def _inputs(self, instance: StepInstance, tasks: Tasks) -> dict[str, Floats]:
        found: dict[str, Any] = {name: np.full(len(tasks), v) for name, v in instance.params.items()}
        if instance.per_sample:
            with suppress(SamplesError, WorkspaceError, OSError):
                found |= self._workspace.samples().picked(tasks)
        known = {name: numbers(values) for name, values in found.items()}
        return {name: values for name, values in known.items() if values is not None}


def _some(num: int, limit: int, random: np.random.Generator) -> Tasks:
    """The numbers below `num`, or as many of them as are looked at, ascending."""
    if num <= limit:
        return np.arange(num, dtype=np.int64)
    return np.unique(random.integers(0, num, limit))
