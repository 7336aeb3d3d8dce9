"""How the chunks of a step become batch jobs of their own: its keys `batch.submit` and what goes with them. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import Struct

from merlin.base.document.scalars import to_amount, to_bool, to_int
from merlin.batch.contract import JobRequest
from merlin.batch.walltime import walltime_seconds
from merlin.errors import ExecutionError
from merlin.plan.plan import Plan, Scalar, StepInstance

LOCAL = "local"  # the batch type without a scheduler
MAX_JOBS = 100  # of one step at a time
FLUX = "flux"  # the task server without workers: chunks are jobs of the instance of Flux around the command
_TASK_SERVER = "batch.task_server"
T = TypeVar("T")


class JobPolicy(Struct, frozen=True, kw_only=True):
    """How one step's chunks are submitted."""

    scheduler: str  # batch.type
    tasks_per_job: int = 1
    max_jobs: int = MAX_JOBS  # of the step at a time, waiting or running
    walltime_s: float | None = None


def job_policy(instance: StepInstance) -> JobPolicy | None:
    """None if the step runs in workers. Raises ExecutionError for values that are no numbers."""
    keys = instance.resources
    scheduler = str(keys.get("batch.type", LOCAL))
    if not keys.get("batch.submit") or not instance.kind.runs_user_code:
        return None
    values = _Values(instance)
    if scheduler == LOCAL or not values.flag("batch.submit"):
        return None
    return JobPolicy(
        scheduler=scheduler,
        tasks_per_job=values.number("batch.tasks_per_job") or 1,
        max_jobs=values.number("batch.max_jobs") or MAX_JOBS,
        walltime_s=values.seconds("walltime"),
    )


def task_server_keys(task_server: str, num_tasks: int) -> dict[str, Scalar]:
    """What the task server adds to the resources of a step with a cmd or a function; nothing if it has workers.

    Each job is an instance of its own, which takes a second to start, so a step has `MAX_JOBS` jobs at most.
    """
    if task_server != FLUX:
        return {}
    per_job = math.ceil(num_tasks / MAX_JOBS)
    return {
        _TASK_SERVER: FLUX,
        "batch.type": FLUX,
        "batch.submit": True,
        "batch.tasks_per_job": max(1, per_job),
    }


def needs_no_workers(instances: Iterable[StepInstance]) -> bool:
    """True if the command that runs the study submits all of it."""
    return any(_TASK_SERVER in instance.resources for instance in instances)


def job_request(instance: StepInstance, *, name: str, output: str) -> JobRequest:
    """The batch job of one chunk: its tasks run one after the other, and each may use the whole job."""
    values = _Values(instance)
    nodes, procs = values.number("nodes") or 1, values.number("procs")
    return JobRequest(
        name=name,
        nodes=nodes,
        procs=procs,
        cores_per_task=values.number("cores per task"),
        gpus=_gpus_per_node(values, nodes, procs or nodes),
        walltime_s=values.seconds("walltime"),
        bank=values.text("batch.bank"),
        queue=values.text("batch.queue"),
        reservation=values.text("reservation") or values.text("batch.reservation"),
        qos=values.text("qos") or values.text("batch.qos"),
        is_exclusive=values.flag("exclusive") or values.flag("exclusive.allocation"),
        output=output,
        error=output,
        priority=values.text("priority"),
        is_waitable=values.flag("waitable"),
    )


def _gpus_per_node(values: _Values, nodes: int, procs: int) -> int | None:
    total = values.devices("gpus") or (values.number("gpus per task") or 0) * procs
    return math.ceil(total / nodes) if total else None


class _Values:
    """The resources of a step instance, with the types that they must have."""

    def __init__(self, instance: StepInstance) -> None:
        self._step, self._values = instance.id, instance.resources

    def text(self, key: str) -> str:
        return str(self._values.get(key, "")).strip()

    def number(self, key: str) -> int | None:
        return self._read(key, lambda value: to_int(value, 0), None)

    def devices(self, key: str) -> int:
        """A number of whole devices: if the tasks need a share of a device, the job gets one device."""
        return math.ceil(self._read(key, to_amount, 0.0))

    def seconds(self, key: str) -> float | None:
        return self._read(key, walltime_seconds, None)

    def flag(self, key: str) -> bool:
        return self._read(key, to_bool, False)

    def _read(self, key: str, read: Callable[[Scalar], T], default: T) -> T:
        value = self._values.get(key, "")
        try:
            return default if value == "" else read(value)
        except ValueError as error:
            raise ExecutionError(f"step {self._step!r}, {key}: {error}") from error


def policies(plan: Plan) -> dict[str, JobPolicy]:
    """The policies of the steps that are submitted, by step; parameters may give its instances other numbers."""
    found = ((instance.step, job_policy(instance)) for instance in plan.instances)
    return {step: policy for step, policy in found if policy is not None}
