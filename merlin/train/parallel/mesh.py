"""What each process of a run is for.

Rank r of the world is rank r mod P of trainer r div P, where P is `ranks_per_trainer`. A single process is a trainer of
one rank, by the same code.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from msgspec import Struct, field
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore

from merlin.errors import UsageError
from merlin.train.parallel.rendezvous import Rendezvous

if TYPE_CHECKING:
    from merlin.train.config import Tournament


class Ranks(Struct, frozen=True):
    """Ranks that share work; `group` is None where they are torch.distributed's default group."""

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
        """True if the flag is true on one of the ranks."""
        return flag if self.size == 1 else bool(self.sum(torch.tensor(float(flag))).item())

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite the tensors of all ranks with those of the first one."""
        if self.size > 1:
            for values in tensors:
                dist.broadcast(values, group=self.group, group_src=0)

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, tensors and plain values, in order, on every rank."""
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
        """The value of the first rank, tensors and plain values, on every rank."""
        if self.size == 1:
            return value
        packed = pack(value) if self.is_first else torch.zeros(0, dtype=torch.uint8)
        size = torch.tensor([len(packed)])
        dist.broadcast(size, group=self.group, group_src=0)
        if not self.is_first:
            packed = torch.zeros(int(size), dtype=torch.uint8)
        dist.broadcast(packed, group=self.group, group_src=0)
        return value if self.is_first else unpack(packed)


class Leaders(Struct, frozen=True):
    """The first ranks of all trainers of a world, and a store that all of them can read and write."""

    index: int  # the number of this process's trainer
    size: int
    ranks_per_trainer: int
    store: Any
    group: Any  # of torch.distributed

    def rank_of(self, trainer: int) -> int:
        """The rank in the world of a trainer's first rank."""
        return trainer * self.ranks_per_trainer


class Mesh(Struct, frozen=True):
    """The trainer that this process works for, and the ranks with which it shares that work."""

    trainer: int = 0
    ranks: Ranks = field(default_factory=Ranks)  # all ranks of the trainer
    local_rank: int = 0
    leaders: Leaders | None = None  # where all trainers are one world

    @property
    def data(self) -> Ranks:
        """The ranks that share each batch, which are all of them."""
        return self.ranks

    @staticmethod
    def build(rendezvous: Rendezvous, tournament: Tournament, trainer: int | None = None) -> Mesh:
        """The mesh of a world that holds all trainers, or only the ranks of `trainer`; sets up process groups.

        Raises UsageError if the number of processes does not fit.
        """
        world, per_trainer = rendezvous.world, tournament.ranks_per_trainer
        num = tournament.trainers if trainer is None else 1
        if world.size != num * per_trainer:
            raise UsageError(
                f"{world.size} processes were started, and {num} trainers of {per_trainer} ranks need "
                f"{num * per_trainer}: change tournament.trainers or tournament.ranks_per_trainer"
            )
        index, rank = divmod(world.rank, per_trainer)
        number = index if trainer is None else trainer
        if tournament.transport == "process_group" and num > 1:
            rendezvous.make_group("world", world.rank, world.size)
            groups = [dist.new_group(range(k * per_trainer, (k + 1) * per_trainer)) for k in range(num)]
            firsts = dist.new_group(range(0, world.size, per_trainer))
            store = PrefixStore("tournament", rendezvous.store)
            leaders = Leaders(index, num, per_trainer, store, firsts)
            return Mesh(number, Ranks(rank, per_trainer, groups[index]), world.local_rank, leaders)
        if per_trainer > 1:
            rendezvous.make_group(f"trainer{number}", rank, per_trainer)
        return Mesh(number, Ranks(rank, per_trainer), world.local_rank)


def pack(value: Any) -> Tensor:
    """Tensors and plain values as bytes (num,) uint8; `unpack` reads them without running code, unlike pickles."""
    file = io.BytesIO()
    torch.save(value, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def unpack(packed: Tensor) -> Any:
    """The value that `pack` was given, on the CPU."""
    return torch.load(io.BytesIO(packed.numpy().tobytes()), map_location="cpu", weights_only=True)
