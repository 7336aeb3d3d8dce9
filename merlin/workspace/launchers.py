"""Which launchers work here: of the schedulers that are installed, and of this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING

from merlin.base.document.tokens import substitute
from merlin.batch.local import Local
from merlin.batch.registry import SCHEDULERS, find_allocation
from merlin.errors import Diagnostic
from merlin.plan.launch import Launchers, asked_processes, has_launcher
from merlin.workspace.local_launcher import LOCAL_LAUNCHERS, LocalLauncher, local_launcher

_OF_EVERY_MPI = ("mpiexec", "mpirun")  # not a sign that there is a scheduler

if TYPE_CHECKING:
    from merlin.batch.contract import BatchScheduler
    from merlin.plan.plan import Plan
    from merlin.spec.load import Spec
    from merlin.spec.model import Step


def launchers_here(spec: Spec, *, is_dry: bool = False) -> Launchers:
    """What starts the parallel programs of a spec; the launcher of this machine is tried out only if it is needed.

    For a dry run, all schedulers count as available.
    """
    schedulers = _all_schedulers() if is_dry else usable_schedulers(os.environ)
    return Launchers(Local(_of_this_machine(spec, schedulers).command), schedulers)


def usable_schedulers(environment: Mapping[str, str]) -> dict[str, BatchScheduler]:
    """Schedulers that this process lives in, or that are installed here, by batch.type."""
    allocation = find_allocation(environment)
    return {
        name: scheduler
        for name, scheduler in SCHEDULERS.items()
        if (allocation is not None and allocation.scheduler == name)
        or any(
            shutil.which(program, path=environment.get("PATH"))
            for program in scheduler.programs
            if program not in _OF_EVERY_MPI
        )
    }


def possible_launchers() -> list[Launchers]:
    """All that a plan may have been made with, on whatever machine."""
    return [Launchers(Local(form), known) for known in ({}, _all_schedulers()) for form in LOCAL_LAUNCHERS]


def launch_warnings(spec: Spec, plan: Plan, *, is_dry: bool = False) -> list[Diagnostic]:
    """Steps whose programs run as one process, although they ask for more."""
    here = Launchers(schedulers=_all_schedulers() if is_dry else usable_schedulers(os.environ))
    launcher = _of_this_machine(spec, here.schedulers)
    if launcher.command:
        return []
    found = []
    for index, step in enumerate(spec.document.study):
        asked = [
            asked_processes(
                substitute(text, {k: str(v) for k, v in instance.params.items()}), instance.resources
            )
            for instance in plan.instances
            if instance.step == step.name and here.scheduler(instance.resources) is None
            for text in step.run.scripts
        ]
        if (most := max(asked, default=1)) > 1:
            found.append(
                spec.finding(
                    ("study", index, "run", "cmd" if step.run.procs is None else "procs"),
                    f"step {step.name!r} asks for {most:,} processes and runs as one: {launcher.trouble}",
                    "no-launcher",
                    launcher.hint,
                    severity="warning",
                )
            )
    return found


def _all_schedulers() -> dict[str, BatchScheduler]:
    return {name: scheduler for name, scheduler in SCHEDULERS.items() if name != Local.name}


def _of_this_machine(spec: Spec, schedulers: Mapping[str, BatchScheduler]) -> LocalLauncher:
    """The launcher of this machine; it is looked for only if a step needs it."""
    types = {
        _batch_type(spec, step) for step in spec.document.study if any(map(has_launcher, step.run.scripts))
    }
    return local_launcher() if types - schedulers.keys() else LocalLauncher("")


def _batch_type(spec: Spec, step: Step) -> str:
    return (step.run.batch.type if step.run.batch else None) or spec.document.batch.type
