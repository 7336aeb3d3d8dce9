"""How much time the tasks of a plan are likely to take, by a study of the same spec that has run before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from msgspec import Struct

from merlin.errors import MerlinError
from merlin.ledger.replay import replay
from merlin.plan.plan import Plan
from merlin.views.cost import core_seconds_per_task
from merlin.views.forecast import tasks_of
from merlin.workspace.directory import open_workspace

MAX_TRIED = 5  # studies that are looked at, for one of which tasks have ended


class TimeForecast(Struct, frozen=True, kw_only=True):
    """The time that a plan is likely to take, if a task of it takes what one of an earlier study took."""

    workspace: str  # of that study
    core_hours: float  # of the steps that it has run; None of `steps` it has not
    steps: dict[str, float | None]  # core-hours by step, in the order of the plan


def time_forecast(plan: Plan, earlier: Iterable[Path]) -> TimeForecast | None:
    """By the first workspace of `earlier` in which tasks have ended.

    None if there is none, or if the number of tasks is not known yet.
    """
    numbers = {instance.id: tasks_of(plan, instance) for instance in plan.instances}
    if None in numbers.values():
        return None
    for path in [*earlier][:MAX_TRIED]:
        try:
            by_id, by_step = _task_seconds(path)
        except MerlinError:
            continue  # a damaged one
        if not by_id:
            continue
        steps: dict[str, float | None] = {}
        for instance in plan.instances:
            task_s = by_id.get(instance.id, by_step.get(instance.step))
            if task_s is None:
                steps.setdefault(instance.step, None)
            else:
                hours = task_s * (numbers[instance.id] or 0) / 3600
                steps[instance.step] = (steps.get(instance.step) or 0.0) + hours
        return TimeForecast(workspace=str(path), core_hours=sum(filter(None, steps.values())), steps=steps)
    return None


def _task_seconds(path: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Core-seconds of a task by step instance, and by step, of what has run in a workspace."""
    workspace = open_workspace(path)
    state = replay(workspace.ledger_dir, workspace.plan)
    by_id = {
        name: seconds for name, seconds in core_seconds_per_task(state, workspace.plan).items() if seconds
    }
    of_step: dict[str, list[float]] = defaultdict(list)
    for name, seconds in by_id.items():
        of_step[workspace.instance(name).step].append(seconds)
    return by_id, {step: fmean(each) for step, each in of_step.items()}
