"""What this process may use of its machine: cores, GPUs, and the other nodes of its allocation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from merlin.batch.devices import CUDA, visible_gpus
from merlin.batch.registry import find_allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    cores: tuple[int, ...]
    gpus: tuple[str, ...] = ()  # by index or identifier
    gpu_variable: str = CUDA  # that tells a program which of them it may use
    other_nodes: tuple[str, ...] = ()  # of the allocation


def this_machine(environment: Mapping[str, str]) -> Machine:
    """The cores and GPUs that this process may use, as the system and its environment say."""
    found = visible_gpus(environment)
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return Machine(cores=cores, gpus=found.gpus, gpu_variable=found.variable)


def other_nodes(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes of the allocation that this process lives in, without its own."""
    allocation = find_allocation(environment)
    if allocation is None or allocation.host not in allocation.hosts:
        return ()
    return tuple(host for host in dict.fromkeys(allocation.hosts) if host != allocation.host)
