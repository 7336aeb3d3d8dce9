"""What this process may use of its machine: cores, GPUs, and the other nodes of its allocation."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from merlin.batch.registry import find_allocation

CUDA, ROCR, ZE = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"
DEVICE_VARIABLES = (ROCR, CUDA, ZE)  # ROCm also reads CUDA's, and counts within its own
_DEVICE = re.compile(
    r"[A-Za-z0-9][\w.:/-]{0,99}", re.ASCII
)  # an index, or an identifier such as GPU-8932f937
_KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    cores: tuple[int, ...]
    gpus: tuple[str, ...] = ()  # by index or identifier
    gpu_variable: str = CUDA  # that tells a program which of them it may use
    other_nodes: tuple[str, ...] = ()  # of the allocation


def this_machine(environment: Mapping[str, str]) -> Machine:
    """The cores and GPUs that this process may use, as the system and its environment say."""
    variable, gpus = _gpus(environment)
    return Machine(cores=tuple(sorted(os.sched_getaffinity(0))), gpus=gpus, gpu_variable=variable)


def other_nodes(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes of the allocation that this process lives in, without its own."""
    allocation = find_allocation(environment)
    if allocation is None or allocation.host not in allocation.hosts:
        return ()
    return tuple(host for host in dict.fromkeys(allocation.hosts) if host != allocation.host)


def _gpus(environment: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The variable that names the GPUs, and what may be used of them."""
    for variable in DEVICE_VARIABLES:
        if variable in environment:
            return variable, listed_devices(environment[variable])
    if num := len(list(Path("/dev").glob("nvidia[0-9]*"))):
        return CUDA, tuple(map(str, range(num)))
    num = sum(_is_gpu(path) for path in _KFD_NODES.glob("*/gpu_id"))
    return ROCR if num else CUDA, tuple(map(str, range(num)))


def listed_devices(text: str) -> tuple[str, ...]:
    """The devices in the value of such a variable; as for the drivers, what follows an invalid one does not count."""
    found: list[str] = []
    for word in (word.strip() for word in text.split(",")):
        if not _DEVICE.fullmatch(word) or word == "NoDevFiles":
            break
        found.append(word)
    return tuple(dict.fromkeys(found))


def _is_gpu(path: Path) -> bool:
    """Return whether a node of AMD's driver is a GPU: CPUs have the number 0."""
    try:
        return path.read_text().strip() not in ("", "0")
    except OSError:
        return False
