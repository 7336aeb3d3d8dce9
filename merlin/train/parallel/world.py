"""This process among all that were started together: its rank, as launchers say it, and its device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from merlin.errors import TrainingError

# launcher: variables of rank, size, local rank, local size, and of what distinguishes one job from another
_LAUNCHERS: dict[str, tuple[str, str, str, str, tuple[str, ...]]] = {
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
    "flux run": ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "", ("FLUX_JOB_ID",)),
    "jsrun": (
        "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE",
        ("LSB_JOBID", "JSM_NAMESPACE"),
    ),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE", ("PMIX_NAMESPACE",),
    ),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PMI_KVSNAME", "PMI_ID")),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class World:
    """The rank of this process among all processes that were started together."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    job: str = ""  # distinguishes jobs whose processes meet through a file; "" if there is an address

    @staticmethod
    def of_torchrun(env: Mapping[str, str]) -> World | None:
        """The world of torchrun's variables; None if torchrun did not start this process."""
        if not all(name in env for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
            return None
        size = int(env["WORLD_SIZE"])
        local = int(env.get("LOCAL_RANK", "0")), int(env.get("LOCAL_WORLD_SIZE", str(size)))
        return World(int(env["RANK"]), size, *local)

    @staticmethod
    def of_launcher(env: Mapping[str, str]) -> World | None:
        """The world of srun, flux run, jsrun or mpirun; None if none of them started more than one process."""
        for rank, size, local_rank, local_size, job in _LAUNCHERS.values():
            if rank in env and int(env.get(size) or 1) > 1:
                num = int(env[size])
                known = env.get(local_size, "")
                return World(
                    int(env[rank]),
                    num,
                    int(env.get(local_rank) or 0),
                    int(known) if known else _slurm_local_size(env, num),
                    "-".join(env.get(name, "") for name in job) or "job",
                )
        return None


def _slurm_local_size(env: Mapping[str, str], size: int) -> int:
    """Processes on this machine, from "4(x2),3" by the node's number; all of them if no variable says it."""
    counts: list[int] = []
    for part in env.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        num, _, times = part.partition("(x")
        if num.isdigit():
            counts += [int(num)] * (int(times.rstrip(")")) if times else 1)
    node = int(env.get("SLURM_NODEID", "0"))
    return counts[node] if node < len(counts) else size


def choose_device(wanted: str, local_rank: int) -> torch.device:
    """The device of a process. Raises TrainingError if there is no such device."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(wanted)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise TrainingError(f"training.device is {wanted}, and torch finds no GPU; write device: auto or cpu")
    num = torch.cuda.device_count()
    index = local_rank % num if device.index is None else device.index
    if index >= num:
        raise TrainingError(f"training.device is {wanted}, and there are {num} GPUs, numbered from 0")
    return torch.device("cuda", index)


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
