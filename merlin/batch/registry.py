"""Every batch scheduler by its name. What else has to know a new one is listed in docs/schedulers.md."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping

from merlin.base.document.findings import allowed
from merlin.batch.contract import Allocation, BatchScheduler
from merlin.batch.flux import Flux
from merlin.batch.local import Local
from merlin.batch.lsf import Lsf, LsfSrun
from merlin.batch.pbs import Pbs
from merlin.batch.slurm import Slurm
from merlin.errors import UsageError

# in this order they are looked for in an environment: an instance of Flux may live in a job of another scheduler
SCHEDULERS: Mapping[str, BatchScheduler] = {
    scheduler.name: scheduler for scheduler in (Flux(), Slurm(), Lsf(), LsfSrun(), Pbs(), Local())
}


def scheduler_of(name: str) -> BatchScheduler:
    """The scheduler that a spec calls `name`. Raises UsageError."""
    if name not in SCHEDULERS:
        raise UsageError(f"there is no batch scheduler {name!r}; {allowed(name, SCHEDULERS, 'there are')}")
    return SCHEDULERS[name]


def find_allocation(environment: Mapping[str, str]) -> Allocation | None:
    """The batch job that the environment belongs to; None outside of one."""
    for scheduler in SCHEDULERS.values():
        if found := scheduler.allocation(environment):
            return found
    return None


def to_ask(names: Iterable[str]) -> list[BatchScheduler]:
    """Those of these schedulers that have jobs, and one of those that have the same jobs, such as lsf and lsf-srun."""
    asked: dict[str, BatchScheduler] = {}
    for scheduler in map(scheduler_of, names):
        if scheduler.programs:
            asked.setdefault(scheduler.system, scheduler)
    return list(asked.values())


def installed() -> list[str]:
    """The schedulers whose commands are on the PATH, by name."""
    return [
        name
        for name, scheduler in SCHEDULERS.items()
        if scheduler.programs and shutil.which(scheduler.programs[0])
    ]
