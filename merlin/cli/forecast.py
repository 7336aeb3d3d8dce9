"""What a plan will run and write, counted before anything runs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from merlin.study.layout import SampleLayout
from merlin.study.plan import Plan, StepInstance, StepKind

FILES_PER_SHELL_TASK = 4  # script, .out, .err, MERLIN_FINISHED
FILES_OF_MANIFEST = 2  # manifest.json, ensemble.h5


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceForecast:
    """One step instance; `num_files` leaves out what the user's own commands write."""

    id: str
    step: str
    kind: str
    per_sample: bool
    num_tasks: int
    num_directories: int
    num_files: int
    waits_for: tuple[str, ...]
    queue: str
    params: dict[str, str | int | float | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    name: str
    workspace: str
    num_samples: int | None  # 0: only generate.cmd knows
    columns: tuple[str, ...]
    num_tasks: int
    num_directories: int
    num_files: int
    num_shards: int
    instances: tuple[InstanceForecast, ...]


def forecast(plan: Plan) -> Forecast:
    """Count what `plan` makes."""
    instances = tuple(_instance(plan, instance) for instance in plan.instances)
    kinds = {i.id: i.kind for i in plan.instances}
    return Forecast(
        name=plan.name,
        workspace=plan.workspace,
        num_samples=plan.samples.num if plan.samples else None,
        columns=plan.samples.labels if plan.samples else (),
        num_tasks=sum(i.num_tasks for i in instances),
        num_directories=sum(i.num_directories for i in instances),
        num_files=sum(i.num_files for i in instances),
        num_shards=sum(i.num_tasks for i in instances if kinds[i.id] is StepKind.AGGREGATE),
        instances=instances,
    )


def _instance(plan: Plan, instance: StepInstance) -> InstanceForecast:
    directories, files = _written(plan, instance)
    return InstanceForecast(
        id=instance.id,
        step=instance.step,
        kind=instance.kind.value,
        per_sample=instance.per_sample,
        num_tasks=instance.num_tasks,
        num_directories=directories,
        num_files=files,
        waits_for=tuple(f"{edge.source} ({edge.kind})" for edge in instance.edges),
        queue=instance.queue,
        params=dict(instance.params),
    )


def _written(plan: Plan, instance: StepInstance) -> tuple[int, int]:
    """Directories and files of one instance."""
    if instance.kind is StepKind.CMD:
        below = 0
        if instance.per_sample and plan.samples is not None:
            below = SampleLayout(plan.samples.num, plan.samples.level_max_dirs).num_directories
        return 1 + below, FILES_PER_SHELL_TASK * instance.num_tasks
    if instance.kind is StepKind.AGGREGATE:
        return 1, instance.num_tasks
    return 0, FILES_OF_MANIFEST if instance.kind is StepKind.MANIFEST else 0
