"""Where this process runs: its host, and the allocation that it lives in."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace

from merlin.batch.contract import Allocation
from merlin.batch.cores import usable_cores
from merlin.batch.devices import visible_gpus
from merlin.batch.jobs import SchedulerClient
from merlin.batch.registry import find_allocation, scheduler_of
from merlin.errors import SchedulerUnreachableError


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """What this process may use, and until when."""

    host: str  # as the scheduler calls it, in an allocation
    cores: int
    gpus: tuple[str, ...] = ()
    scheduler: str = ""  # of the allocation; "" outside of one
    job: str = ""
    hosts: tuple[str, ...] = ()  # of the allocation, if it says them
    num_nodes: int = 1
    ends: float | None = None  # epoch seconds, when the walltime is over; None: not known, or never
    num_restarts: int = 0


def find_here(environment: Mapping[str, str], *, client: SchedulerClient | None = None) -> Here:
    """The place of this process.

    Where the environment does not say when the walltime ends, `client` is asked once; without an answer the end is
    not known.
    """
    found = allocation_here(environment, client=client)
    gpus = visible_gpus(environment).gpus
    if found is None:
        return Here(host=socket.gethostname(), cores=usable_cores(), gpus=gpus)
    return Here(
        host=found.host or socket.gethostname(),
        cores=usable_cores(found.cores),
        gpus=gpus,
        scheduler=found.scheduler,
        job=found.job,
        hosts=tuple(found.hosts),
        num_nodes=found.num_nodes,
        ends=found.ends,
        num_restarts=found.num_restarts,
    )


def allocation_here(environment: Mapping[str, str], *, client: SchedulerClient | None) -> Allocation | None:
    """The allocation of this process; None outside of one.

    What its environment does not say, the number of nodes or the end of the walltime, `client` is asked once; without
    an answer it stays unknown.
    """
    found = find_allocation(environment)
    if found is None or client is None or (found.hosts and found.ends is not None):
        return found
    try:
        job = client.own_job(environment)
    except SchedulerUnreachableError:
        return found
    if job is None:
        return found
    return replace(
        found,
        num_nodes=found.num_nodes if found.hosts else job.num_nodes or found.num_nodes,
        ends=job.ends if found.ends is None else found.ends,
    )


def client_here(environment: Mapping[str, str]) -> SchedulerClient | None:
    """A client of the scheduler whose allocation this is; None outside of one."""
    found = find_allocation(environment)
    return None if found is None else SchedulerClient(scheduler_of(found.scheduler), environment=environment)
