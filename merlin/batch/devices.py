"""The GPUs that this process may use, as its environment names them or the machine has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

CUDA, ROCR, ZE = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"
DEVICE_VARIABLES = (ROCR, CUDA, ZE)  # ROCm also reads CUDA's, and counts within its own
_OF_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")  # where it sets none of these
# an index, or an identifier such as GPU-8932f937
_DEVICE = re.compile(r"[A-Za-z0-9][\w.:/-]{0,99}", re.ASCII)
_RANGE = re.compile(r"(\d{1,4})-(\d{1,4})")
_KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")


class VisibleGpus(Struct, frozen=True):
    gpus: tuple[str, ...]  # by index or identifier
    variables: tuple[str, ...] = (CUDA,)  # that tell a program which of them it may use


def visible_gpus(environment: Mapping[str, str]) -> VisibleGpus:
    """The GPUs that a variable names; without such a variable, all GPUs of the machine."""
    num_amd = sum(_is_gpu(path) for path in _KFD_NODES.glob("*/gpu_id"))
    if named := {name: listed_devices(environment[name]) for name in DEVICE_VARIABLES if name in environment}:
        first, gpus = next(iter(named.items()))
        # Slurm may set the variables of all makers alike; ROCm would look for CUDA's within its own
        alike = tuple(name for name, listed in named.items() if listed == gpus)
        return VisibleGpus(gpus, (first,) if num_amd else alike)
    for variable in _OF_SLURM:
        if variable in environment:
            return VisibleGpus(listed_devices(environment[variable]))
    if num := len(list(Path("/dev").glob("nvidia[0-9]*"))):
        return VisibleGpus(tuple(map(str, range(num))))
    return VisibleGpus(tuple(map(str, range(num_amd))), (ROCR if num_amd else CUDA,))


def listed_devices(text: str) -> tuple[str, ...]:
    """The devices of "0,1", "0-3", "GPU-8932f937". Like the drivers, it ignores all that follows an invalid one."""
    found: dict[str, None] = {}
    for word in (word.strip() for word in text.split(",")):
        if match := _RANGE.fullmatch(word):
            found.update(dict.fromkeys(map(str, range(int(match[1]), int(match[2]) + 1))))
        elif _DEVICE.fullmatch(word) and word != "NoDevFiles":
            found[word] = None
        else:
            break
    return tuple(found)


def _is_gpu(path: Path) -> bool:
    """Return whether a node of AMD's driver is a GPU: CPUs have the number 0."""
    try:
        return path.read_text().strip() not in ("", "0")
    except OSError:
        return False
