"""Whether the batch schedulers that a study's jobs are for can be used on this machine."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from merlin.batch.jobs import SchedulerClient
from merlin.batch.registry import SCHEDULERS, scheduler_of
from merlin.errors import ExecutionError, SchedulerUnreachableError, UsageError
from merlin.plan.job_policy import FLUX, LOCAL, job_policy
from merlin.plan.schedule import Scheduler

if TYPE_CHECKING:
    from merlin.spec.load import Spec

ANSWER_S = 10.0  # for the first question
_NO_JOB = "merlin-asks"  # the first question is for a job of this name, and its answer does not matter
_WITHOUT = (
    "To run the step without jobs of its own, write type: local in its block batch, or set the variable that the type "
    "is taken from with --vars"
)


def scheduler_client(name: str) -> SchedulerClient:
    """The client of the scheduler that a spec calls `name`. Raises UsageError."""
    return SchedulerClient(scheduler_of(name))


def require_schedulers(scheduler: Scheduler) -> None:
    """Check that every batch scheduler that the rest of the study needs can be used here.

    Raises UsageError, or ExecutionError within seconds.
    """
    counts, steps = scheduler.counts(), dict[str, str]()
    for instance in scheduler.plan.instances:
        policy = job_policy(instance)
        if policy is not None and counts[instance.id].missing:
            steps.setdefault(policy.scheduler, instance.step)
    for name, step in steps.items():
        require_scheduler(name, step)


def require_schedulers_of(spec: Spec) -> None:
    """The same check for all steps of a spec, before anything is prepared."""
    default, steps = spec.document.batch.type, dict[str, str]()
    if spec.document.merlin.resources.task_server == FLUX:
        steps[FLUX] = spec.document.study[0].name
    for step in spec.document.study:
        if step.run.batch is not None and step.run.batch.submit is True:
            steps.setdefault(step.run.batch.type or default, step.name)
    for name, step_name in steps.items():
        if name in SCHEDULERS and name != LOCAL:  # others have parameters
            require_scheduler(name, step_name)


def require_scheduler(name: str, step: str) -> None:
    """The same check for the scheduler `name` of one step."""
    if not is_installed(name):
        raise UsageError(lacks_program(name, step))
    try:
        SchedulerClient(scheduler_of(name), limit_s=ANSWER_S).find(_NO_JOB)
    except SchedulerUnreachableError as error:
        title = scheduler_of(name).title
        raise ExecutionError(
            f"step {step!r} has batch jobs, and {title} cannot be asked here: {error}\n{_WITHOUT}"
        ) from error


def is_installed(name: str) -> bool:
    """Whether the command that submits is on the PATH."""
    programs = scheduler_of(name).programs
    return not programs or shutil.which(programs[0]) is not None


def lacks_program(name: str, step: str) -> str:
    """What to do about a step that cannot be submitted here."""
    batch = scheduler_of(name)
    return (
        f"step {step!r} has batch jobs of {batch.title}, but there is no {batch.programs[0]} on the PATH; "
        f"start it where that is. {_WITHOUT}"
    )
