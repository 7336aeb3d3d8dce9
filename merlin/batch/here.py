"""Where this process runs: its host, and the allocation that it lives in."""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from merlin.batch.contract import Allocation
from merlin.batch.cores import usable_cores
from merlin.batch.jobs import SchedulerClient
from merlin.batch.registry import find_allocation, scheduler_of
from merlin.errors import ExecutionError, SchedulerUnreachableError

WALLTIME_END = "MERLIN_WALLTIME_END"  # epoch seconds; where the scheduler does not say it, or to end earlier
ANSWER_S = 15.0  # to the question for the end of the walltime; without an answer there is no end


class Here(Struct, frozen=True, kw_only=True):
    """What this process may use, and until when."""

    host: str  # as the scheduler calls it, in an allocation
    cores: int
    scheduler: str = ""  # of the allocation; "" outside of one
    job: str = ""
    num_nodes: int = 1
    ends: float | None = None  # epoch seconds, when the walltime is over; None: not known, or never


def find_here(environment: Mapping[str, str]) -> Here:
    """The place of this process. Raises ExecutionError if `MERLIN_WALLTIME_END` is no time."""
    found = find_allocation(environment) or Allocation(scheduler="", job="")
    return Here(
        host=found.host or socket.gethostname(),
        cores=usable_cores(found.cores),
        scheduler=found.scheduler,
        job=found.job,
        num_nodes=found.num_nodes,
        ends=find_end(environment),
    )


def allocation_here(
    environment: Mapping[str, str], *, client: SchedulerClient | None = None
) -> Allocation | None:
    """The allocation of this process; None outside of one.

    If the environment does not say the number of nodes or the end of the walltime, `client` is asked once; without an
    answer they stay unknown.

    Raises ExecutionError if `MERLIN_WALLTIME_END` is no time.
    """
    found = find_allocation(environment)
    if found is None:
        return None
    if (given := _given_end(environment, found.job)) is not None:
        found = replace(found, ends=given)
    if client is None or (found.hosts and found.ends is not None):
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


def find_end(environment: Mapping[str, str], *, client: SchedulerClient | None = None) -> float | None:
    """When this process has to end, in epoch seconds, as `allocation_here` knows it; None if it is not known."""
    found = allocation_here(environment, client=client)
    return _given_end(environment, "") if found is None else found.ends


def client_here(environment: Mapping[str, str]) -> SchedulerClient | None:
    """A client of the scheduler whose allocation this is, for one short question; None outside of one."""
    found = find_allocation(environment)
    if found is None:
        return None
    return SchedulerClient(scheduler_of(found.scheduler), environment=environment, limit_s=ANSWER_S)


def end_for_children(allocation: Allocation | None) -> dict[str, str]:
    """The variable that tells the processes of an allocation its end, so that they need not ask the scheduler.

    It names the job, because a program may submit jobs of its own, which inherit it.
    """
    if allocation is None or allocation.ends is None:
        return {}
    return {WALLTIME_END: f"{allocation.ends:.0f} {allocation.job}".strip()}


def _given_end(environment: Mapping[str, str], job: str) -> float | None:
    """The end that the variable sets for every job, or for this job."""
    text, _, its_job = environment.get(WALLTIME_END, "").strip().partition(" ")
    if not text or its_job not in ("", job):
        return None
    try:
        ends = float(text)
    except ValueError:
        ends = math.nan
    if not 0 <= ends < 1e11:
        raise ExecutionError(f"{WALLTIME_END} must be a time in seconds since 1970, not {text!r}")
    return ends
