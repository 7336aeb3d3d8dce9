"""The processes of a run: which one this is, how they find each other, and what the ranks of a trainer agree on.

Rank r of the run is rank r mod P of trainer r div P, where P is `ranks_per_trainer`. A single process is a trainer of
one rank, by the same code.
"""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from merlin.base.files import write_text
from merlin.errors import TrainingError

JOIN_S = 300.0
_LOOK_S = 0.05
# launcher: variables of rank, size, local rank, local size, and of what tells one job from another
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
    """This process among all that were started together."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    job: str = ""  # tells jobs apart where processes meet through a file; "" if there is an address

    @staticmethod
    def of_torchrun(env: Mapping[str, str]) -> World | None:
        """As torchrun says; None if it did not start this process."""
        if not all(name in env for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
            return None
        size = int(env["WORLD_SIZE"])
        local = int(env.get("LOCAL_RANK", "0")), int(env.get("LOCAL_WORLD_SIZE", str(size)))
        return World(int(env["RANK"]), size, *local)

    @staticmethod
    def of_launcher(env: Mapping[str, str]) -> World | None:
        """As srun, flux run, jsrun or mpirun say; None if none of them started more than one process."""
        for rank, size, local_rank, local_size, job in _LAUNCHERS.values():
            if rank in env and int(env.get(size) or 1) > 1:
                num = int(env[size])
                known = env.get(local_size, "") if local_size else ""
                return World(
                    int(env[rank]),
                    num,
                    int(env.get(local_rank) or 0),
                    int(known) if known else _slurm_local_size(env, num),
                    "-".join(env.get(name, "") for name in job) or "job",
                )
        return None


def _slurm_local_size(env: Mapping[str, str], size: int) -> int:
    """Processes on this machine, from "4(x2),3" by the node's number; all, if nobody says."""
    counts: list[int] = []
    for part in env.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        num, _, times = part.partition("(x")
        if num.isdigit():
            counts += [int(num)] * (int(times.rstrip(")")) if times else 1)
    node = int(env.get("SLURM_NODEID", "0"))
    return counts[node] if node < len(counts) else size


@dataclass
class Meeting:
    """A store that all processes of the world share, and the process groups made with it."""

    world: World
    store: Any = None  # torch.distributed.Store; None in a world of one
    groups: list[Any] = field(default_factory=list)

    @staticmethod
    def join(world: World, meeting_place: Path, env: Mapping[str, str]) -> Meeting:
        """Meet the other processes at MASTER_ADDR, or through a file in the directory `meeting_place`.

        Raises TrainingError if they do not all come.
        """
        if world.size == 1:
            return Meeting(world)
        try:
            store = _at_address(world, env) if not world.job else _through_file(world, meeting_place)
            store.add("arrived", 1)
            _wait_for_all(store, world)
            if world.job and world.rank == 0:
                _meeting_file(world, meeting_place).unlink(missing_ok=True)
        except (RuntimeError, OSError) as error:
            why = str(error).rstrip(".")
            raise TrainingError(
                f"rank {world.rank} of {world.size} could not meet the others within {JOIN_S:.0f} s: {why}; "
                "did all of them start, with the same configuration?"
            ) from error
        return Meeting(world, store)

    def tell_all(self, key: str, value: str | None) -> str:
        """What rank 0 says under a key; the others give None."""
        if self.store is None:
            assert value is not None
            return value
        if value is not None:
            self.store.set(key, value)
        return str(self.store.get(key).decode())

    def make_group(self, name: str, rank: int, size: int) -> None:
        """Set up torch.distributed among those who give the same name."""
        dist.init_process_group(
            store=PrefixStore(name, self.store), rank=rank, world_size=size, timeout=timedelta(minutes=10)
        )

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def _at_address(world: World, env: Mapping[str, str]) -> Any:
    """torchrun's own store, or one of rank 0's."""
    served = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(
        env["MASTER_ADDR"],
        int(env["MASTER_PORT"]),
        is_master=world.rank == 0 and not served,
        wait_for_workers=False,
        timeout=timedelta(seconds=JOIN_S),
    )
    return PrefixStore(f"merlin/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _through_file(world: World, directory: Path) -> Any:
    """Rank 0 serves a store and writes where into a file that the others wait for."""
    path = _meeting_file(world, directory)
    limit = timedelta(seconds=JOIN_S)
    if world.rank == 0:
        store = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=limit)
        write_text(path, f"{socket.gethostname()} {store.port}")
        return store
    end = time.monotonic() + JOIN_S
    while time.monotonic() < end:
        try:
            host, port = path.read_text().split()
            return TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=limit)
        except (OSError, ValueError, RuntimeError):  # not written yet, or an earlier job's
            time.sleep(_LOOK_S)
    raise RuntimeError(f"nobody wrote {path}")


def _meeting_file(world: World, directory: Path) -> Path:
    return directory / f".meeting-{world.job}"


def _wait_for_all(store: Any, world: World) -> None:
    end = time.monotonic() + JOIN_S
    while (num := store.add("arrived", 0)) < world.size:
        if time.monotonic() > end:
            raise RuntimeError(f"only {num} of {world.size} processes came")
        time.sleep(_LOOK_S)


@dataclass(frozen=True)
class Ranks:
    """The ranks of one trainer; `group` is None where torch.distributed's default group is theirs."""

    rank: int = 0
    size: int = 1
    group: Any = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum over the ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the ranks, in place."""
        return self.sum(values).div_(self.size)

    def any(self, flag: bool) -> bool:
        """Whether it is true for one of them."""
        return flag if self.size == 1 else bool(self.sum(torch.tensor(float(flag))).item())

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Let all have what the first has."""
        if self.size > 1:
            for values in tensors:
                dist.broadcast(values, group=self.group, group_src=0)

    def gather(self, value: Any) -> list[Any]:
        """What each has, tensors and plain values, in order, on every rank."""
        if self.size == 1:
            return [value]
        packed = pack(value)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(packed)]), group=self.group)
        longest = int(max(sizes))
        blocks = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        padded = torch.nn.functional.pad(packed, (0, longest - len(packed)))
        dist.all_gather(blocks, padded, group=self.group)
        return [unpack(block[: int(size)]) for block, size in zip(blocks, sizes, strict=True)]

    def from_first(self, value: Any) -> Any:
        """What the first rank has, tensors and plain values."""
        if self.size == 1:
            return value
        packed = pack(value) if self.is_first else torch.zeros(0, dtype=torch.uint8)
        size = torch.tensor([len(packed)])
        dist.broadcast(size, group=self.group, group_src=0)
        if not self.is_first:
            packed = torch.zeros(int(size), dtype=torch.uint8)
        dist.broadcast(packed, group=self.group, group_src=0)
        return value if self.is_first else unpack(packed)


@dataclass(frozen=True)
class Circle:
    """The first ranks of all trainers of a world, and the store that they tell each other things through."""

    index: int  # of this one's trainer
    size: int
    ranks_per_trainer: int
    store: Any
    group: Any = None  # None where torch.distributed's default group is theirs

    def rank_of(self, trainer: int) -> int:
        """The rank in the world of a trainer's first rank."""
        return trainer * self.ranks_per_trainer


def pack(value: Any) -> Tensor:
    """As bytes (num,) uint8; read back without running code, unlike pickles."""
    file = io.BytesIO()
    torch.save(value, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def unpack(packed: Tensor) -> Any:
    return torch.load(io.BytesIO(packed.numpy().tobytes()), map_location="cpu", weights_only=True)


def choose_device(wanted: str, local_rank: int) -> torch.device:
    """The device of a process; TrainingError if there is no such."""
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
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
