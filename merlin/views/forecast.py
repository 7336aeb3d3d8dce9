"""What a plan will run and write, counted before anything runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec import Struct

from merlin.plan.job_policy import job_policy, job_request
from merlin.plan.plan import Aggregate, Plan, StepInstance, StepKind

FILES_PER_SHELL_TASK = 4  # script, .out, .err, MERLIN_FINISHED
FILES_OF_MANIFEST = 2  # manifest.json, ensemble.h5
BYTES_OF_ROW = 20  # sample_id, row and attempt
UNKNOWN = "unknown until generate.cmd has run"

N = TypeVar("N", int, float)


class InstanceForecast(Struct, frozen=True, kw_only=True):
    """One step instance; None is `UNKNOWN`, of `node_hours` also that a batch job has no walltime.

    `num_files` leaves out what the user's own commands write.
    """

    id: str
    step: str
    kind: str
    per_sample: bool
    num_tasks: int | None
    num_directories: int | None
    num_files: int | None
    num_bytes: (
        int | None
    )  # of an aggregate's rows before compression, without text and items of ragged fields
    num_jobs: int | None  # batch jobs of its own
    node_hours: float | None  # that these ask for
    waits_for: tuple[str, ...]
    queue: str
    params: dict[str, str | int | float | bool]


class Forecast(Struct, frozen=True, kw_only=True):
    """What a plan will run and write; None is `UNKNOWN`."""

    name: str
    workspace: str
    num_samples: int | None  # None: unknown; or, if `columns` is empty, there are none
    columns: tuple[str, ...]
    num_tasks: int | None
    num_directories: int | None
    num_files: int | None
    num_shards: int | None
    num_bytes: int | None  # of data sets; see `InstanceForecast`
    num_jobs: int | None
    node_hours: float | None
    instances: tuple[InstanceForecast, ...]


def forecast(plan: Plan) -> Forecast:
    """Count what `plan` makes."""
    instances = tuple(_instance(plan, instance) for instance in plan.instances)
    kinds = {i.id: i.kind for i in plan.instances}
    return Forecast(
        name=plan.name,
        workspace=plan.workspace,
        num_samples=plan.samples.num or None if plan.samples else None,
        columns=plan.samples.labels if plan.samples else (),
        num_tasks=total(i.num_tasks for i in instances),
        num_directories=total(i.num_directories for i in instances),
        num_files=total(i.num_files for i in instances),
        num_shards=total(i.num_tasks for i in instances if kinds[i.id] is StepKind.AGGREGATE),
        num_bytes=total(i.num_bytes for i in instances),
        num_jobs=total(i.num_jobs for i in instances),
        node_hours=total(i.node_hours for i in instances),
        instances=instances,
    )


def total(numbers: Iterable[N | None]) -> N | None:
    """The sum; None if one of them is unknown."""
    every = list(numbers)
    known = [number for number in every if number is not None]
    return sum(known) if len(known) == len(every) else None


def tasks_of(plan: Plan, instance: StepInstance) -> int | None:
    """The number of tasks; None where it follows from samples that only generate.cmd can count."""
    if plan.samples is None or plan.samples.num:
        return instance.num_tasks
    sources = instance.aggregate.sources if instance.aggregate is not None else ()
    follows = instance.per_sample or any(i.per_sample for i in plan.instances if i.id in sources)
    return None if follows and instance.kind is not StepKind.MANIFEST else instance.num_tasks


def _instance(plan: Plan, instance: StepInstance) -> InstanceForecast:
    num_tasks = tasks_of(plan, instance)
    directories, files = (None, None) if num_tasks is None else _written(plan, instance)
    num_jobs, node_hours = _jobs(instance, num_tasks)
    return InstanceForecast(
        id=instance.id,
        step=instance.step,
        kind=instance.kind.value,
        per_sample=instance.per_sample,
        num_tasks=num_tasks,
        num_directories=directories,
        num_files=files,
        num_bytes=_data_bytes(plan, instance),
        num_jobs=num_jobs,
        node_hours=node_hours,
        waits_for=tuple(f"{edge.source} ({edge.kind})" for edge in instance.edges),
        queue=instance.queue,
        params=dict(instance.params),
    )


def _written(plan: Plan, instance: StepInstance) -> tuple[int, int]:
    """Directories and files of one instance."""
    if instance.kind is StepKind.CMD:
        below = 0
        if instance.per_sample and plan.samples is not None:
            below = plan.samples.layout.num_directories
        return 1 + below, FILES_PER_SHELL_TASK * instance.num_tasks
    if instance.kind is StepKind.AGGREGATE:
        return 1, instance.num_tasks
    return 0, FILES_OF_MANIFEST if instance.kind is StepKind.MANIFEST else 0


def _data_bytes(plan: Plan, instance: StepInstance) -> int | None:
    """Of the rows of one aggregate."""
    if instance.kind is not StepKind.AGGREGATE or instance.aggregate is None:
        return 0
    sources = [i for i in plan.instances if i.id in instance.aggregate.sources]
    num_rows = total(tasks_of(plan, source) for source in sources)
    return None if num_rows is None else num_rows * _row_bytes(plan, instance.aggregate, sources)


def _row_bytes(plan: Plan, aggregate: Aggregate, sources: Sequence[StepInstance]) -> int:
    labels = plan.samples.labels if plan.samples is not None and sources[0].per_sample else ()
    parameters = {name for source in sources for name in source.params}
    fields = (each.item_bytes for each in aggregate.fields if not (each.ragged or each.is_text))
    return BYTES_OF_ROW + 8 * (len(labels) + len(parameters)) + sum(fields)


def _jobs(instance: StepInstance, num_tasks: int | None) -> tuple[int | None, float | None]:
    """The batch jobs of one instance if none has to run again, and the node-hours that they ask for."""
    policy = job_policy(instance)
    if policy is None:
        return 0, 0.0
    if num_tasks is None:
        return None, None
    num_jobs = math.ceil(num_tasks / policy.tasks_per_job)
    request = job_request(instance, name="plan", output="")
    return (
        num_jobs,
        None if request.walltime_s is None else num_jobs * request.nodes * request.walltime_s / 3600,
    )
