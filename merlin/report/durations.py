"""How long the tasks of each step took: quantiles, and a histogram on one logarithmic scale for all steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from merlin.ledger.columns import task_columns
from merlin.ledger.replay import Replay
from merlin.plan.plan import Plan, StepInstance
from merlin.plan.tasks import Outcome

NUM_BARS = 32
_MOST_TASKS = 1_000_000  # of a step with more tasks, evenly spaced stretches are read
_STRETCH = 50_000
_SHORTEST_S = 1e-6

Array = NDArray[Any]


class Durations(Struct, frozen=True, kw_only=True):
    """Seconds of single tasks of one step that ended ok or failed."""

    num: int  # tasks that were looked at
    median_s: float
    p95_s: float
    longest_s: float
    bars: tuple[int, ...]  # tasks in each of `NUM_BARS` classes, which are those of all steps


class StepDurations(Struct, frozen=True, kw_only=True):
    """The durations by step; their classes are evenly spaced between the logarithms of `low_s` and `high_s`."""

    low_s: float
    high_s: float
    steps: Mapping[str, Durations]


def step_durations(studies: Sequence[tuple[Plan, Replay]]) -> StepDurations:
    """The durations in a study and its extensions; steps of which no task has ended are left out."""
    found: dict[str, list[Array]] = {}
    for plan, replay in studies:
        for instance in plan.instances:
            found.setdefault(instance.step, []).extend(_seconds(replay, instance))
    joined = {step: np.concatenate(parts) for step, parts in found.items() if any(len(p) for p in parts)}
    low = min((float(values.min()) for values in joined.values()), default=_SHORTEST_S)
    high = max((float(values.max()) for values in joined.values()), default=1.0)
    low, high = max(low, _SHORTEST_S), max(high, 10 * _SHORTEST_S, 1.01 * low)
    edges = np.geomspace(low, high, NUM_BARS + 1)
    return StepDurations(
        low_s=low, high_s=high, steps={step: _durations(values, edges) for step, values in joined.items()}
    )


def _durations(values: Array, edges: Array) -> Durations:
    median, p95 = (float(q) for q in np.quantile(values, [0.5, 0.95]))
    bars, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    longest = float(values.max())
    return Durations(
        num=len(values), median_s=median, p95_s=p95, longest_s=longest, bars=tuple(map(int, bars))
    )


def _seconds(replay: Replay, instance: StepInstance) -> Iterable[Array]:
    num = instance.num_tasks
    if not replay.entries(instance.id):
        return
    step = _STRETCH * max(1, -(-num // _MOST_TASKS))
    for lo in range(0, num, step):
        columns = task_columns(replay, instance.id, num, lo, lo + _STRETCH)
        ended = (columns.outcomes == Outcome.OK) | (columns.outcomes == Outcome.FAILED)
        yield columns.seconds[ended].astype(np.float64)
