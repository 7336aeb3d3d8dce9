"""This process among all that were started together: its rank, as launchers say it, and its device."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import torch
from msgspec import Struct

from merlin.batch.ranks import find_rank
from merlin.errors import TrainingError


class World(Struct, frozen=True):
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
    def of_child(env: Mapping[str, str]) -> World:
        """The world of a process that `merlin train` started; one without torchrun's address is a world of its own."""
        found = World.of_torchrun(env)
        local = int(env.get("LOCAL_RANK", "0")), int(env.get("LOCAL_WORLD_SIZE", "1"))
        return World(0, 1, *local) if found is None else found

    @staticmethod
    def of_launcher(env: Mapping[str, str]) -> World | None:
        """The world of srun, flux run, jsrun or mpirun; None if none of them started more than one process."""
        found = find_rank(env)
        if found is None:
            return None
        return World(found.rank, found.size, found.local_rank, found.local_size, found.job)


def choose_device(wanted: str, local_rank: int) -> torch.device:
    """The device of a process. Raises TrainingError if there is no such device."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise TrainingError(f"{wanted!r} is no device; write auto, cpu, cuda or cuda:N") from error
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise TrainingError(f"training.device is {wanted}, and torch finds no GPU; write device: auto or cpu")
    num = torch.cuda.device_count()
    index = local_rank % num if device.index is None else device.index
    if index >= num:
        raise TrainingError(f"training.device is {wanted}, and there are {num} GPUs, numbered from 0")
    return torch.device("cuda", index)


def gpu_id(device: torch.device) -> str:
    """What no other GPU has, though parts of one GPU (MIG) have it in common; empty for the CPU."""
    if device.type != "cuda":
        return ""
    found = torch.cuda.get_device_properties(device)
    address = [getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    # older versions of PyTorch do not tell the address, and AMD's GPUs may have no uuid
    return str(found.uuid) if None in address else f"{socket.gethostname()} {address}"
