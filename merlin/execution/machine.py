"""What this process may use of its machine: cores, GPUs, and the other nodes of its allocation."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from merlin.batch.devices import CUDA, visible_gpus
from merlin.batch.registry import find_allocation, scheduler_of


class Machine(Struct, frozen=True, kw_only=True):
    cores: tuple[int, ...]
    gpus: tuple[str, ...] = ()  # by index or identifier
    gpu_variables: tuple[str, ...] = (CUDA,)  # that tell a program which of them it may use
    other_nodes: tuple[str, ...] = ()  # of the allocation, if no other worker uses them
    num_nodes: int = 1  # of the allocation
    # of programs that the scheduler's launcher starts beside others
    side_by_side: Mapping[str, str] = field(default_factory=dict)


def this_machine(environment: Mapping[str, str]) -> Machine:
    """The cores and GPUs that this process may use, as the system and its environment say."""
    found, allocation = visible_gpus(environment), find_allocation(environment)
    here = Machine(
        cores=tuple(sorted(os.sched_getaffinity(0))), gpus=found.gpus, gpu_variables=found.variables
    )
    if allocation is None:
        return here
    beside = scheduler_of(allocation.scheduler).side_by_side(environment)
    return replace(here, num_nodes=allocation.num_nodes, side_by_side=beside)


def whole_allocation(environment: Mapping[str, str]) -> Machine:
    """The same, for a process that has all nodes of its allocation for itself."""
    here, allocation = this_machine(environment), find_allocation(environment)
    if allocation is None or allocation.host not in allocation.hosts:
        return here
    others = tuple(host for host in dict.fromkeys(allocation.hosts) if host != allocation.host)
    return replace(here, other_nodes=others)
