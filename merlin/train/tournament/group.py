"""Models that travel between processes of one torch.distributed world: all trainers are there from beginning to end.

Summaries go through the world's store, which can be asked without waiting; only models are sent from first rank to
first rank: over NCCL where every trainer has a GPU of its own, otherwise over gloo, from the CPU. After a round nobody
goes on before all have written their checkpoints, so that there is always a round from which all can go on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from merlin.base.records import as_kind, to_plain
from merlin.errors import TrainingError
from merlin.train.parallel.mesh import Leaders, pack, unpack
from merlin.train.parallel.world import gpu_id
from merlin.train.state_file import State
from merlin.train.tournament.averaging import is_sound
from merlin.train.tournament.exchange import (
    Mean,
    OfferedModel,
    RoundInterruptedError,
    Summary,
    Waiting,
)

LOST_S = 600.0  # seconds for which the others are waited for, at least
_PIECE_BYTES = 1 << 30  # sent at once


class GroupTransport:
    """The first ranks of all trainers; `device` is this trainer's."""

    def __init__(self, leaders: Leaders, device: torch.device, stopping: Callable[[], bool]) -> None:
        self._leaders = leaders
        self._own_device = device
        self._device = torch.device("cpu")  # where models are sent from; chosen when all have come
        self._stopping = stopping
        self._state: State = {}
        self._saved = 0

    def participants(self, number: int) -> list[int]:
        return list(range(self._leaders.size))

    def offer(self, number: int, summary: Summary, state: State) -> None:
        self._state = state
        self._set(f"round/{number}", to_plain(summary))

    def summaries(self, number: int, trainers: Sequence[int], limit_s: float) -> Waiting[dict[int, Summary]]:
        found = yield from self._await(f"round/{number}", trainers, limit_s)
        return {trainer: as_kind(data, Summary) for trainer, data in found.items()}

    def take(self, number: int, moves: Mapping[int, int], limit_s: float) -> Waiting[OfferedModel | None]:
        """Every taker and giver has to call it with the same moves."""
        me = self._leaders.index
        giver = moves.get(me)
        takers = [taker for taker, of in moves.items() if of == me]
        partners = sorted({*takers, *(() if giver is None else (giver,))} - {me})
        yield from self._await(f"round/{number}", partners, limit_s)
        with self._explaining(f"round {number}: trainers {partners}"):
            state = self._pass_on([t for t in takers if t != me], None if giver == me else giver)
        if giver is None:
            return None
        return OfferedModel(giver, number, self._state if giver == me else state)

    def mean(self, number: int, own: Tensor, limit_s: float) -> Waiting[Mean | None]:
        """The mean; each trainer computes a slice of it for all, so that none receives more than two models.

        Every trainer of the world has to call it.
        """
        sizes = yield from self._sizes(number, len(own) if is_sound(own) else 0, limit_s)
        longest = max(sizes)
        counted = [trainer for trainer, size in enumerate(sizes) if size == longest]
        if not longest:
            return None
        with self._explaining(f"round {number}"):
            return Mean(tuple(counted), self._mean_by_slices(own, counted, longest))

    def _sizes(self, number: int, own: int, limit_s: float) -> Waiting[list[int]]:
        """The lengths of the vectors of all trainers. Raises TrainingError if one of them does not come."""
        mine = torch.tensor([own], device=self._device)
        found = [torch.zeros_like(mine) for _ in range(self._leaders.size)]
        end = time.monotonic() + max(limit_s, LOST_S)
        with self._explaining(f"round {number}"):
            work = dist.all_gather(found, mine, group=self._leaders.group, async_op=True)
        while not work.is_completed():
            if time.monotonic() > end:
                raise TrainingError(f"{_lost(f'round {number}')} a trainer did not come in time")
            yield
        with self._explaining(f"round {number}"):
            work.wait()
        return [int(size) for size in found]

    def _mean_by_slices(self, vector: Tensor, counted: Sequence[int], size: int) -> Tensor:
        """The mean of the vectors of the trainers `counted`, in the order of their numbers."""
        me, num = self._leaders.index, self._leaders.size
        width = -(-size // num)
        mine = torch.nn.functional.pad(vector[:size], (0, width * num - min(size, len(vector))))
        slices = mine.to(self._device).split(width)
        received = {k: torch.empty_like(slices[me]) for k in counted if k != me}
        others = [k for k in range(num) if k != me]
        self._together(
            [(slices[k], k) for k in others if me in counted], [(t, k) for k, t in received.items()]
        )
        first, *rest = (received.get(trainer, slices[me]) for trainer in counted)
        total = first.clone()
        for part in rest:
            total += part
        means = {k: torch.empty_like(total) for k in others}
        means[me] = total / len(counted)
        self._together([(means[me], k) for k in others], [(means[k], k) for k in others])
        return torch.cat([means[k] for k in range(num)])[:size].cpu()

    def saved(self, number: int, done: bool) -> Waiting[None]:
        if number == self._saved:
            return
        self._saved = number
        self._set(f"saved/{number}", done)
        yield from self._await(f"saved/{number}", range(self._leaders.size), 0.0)

    def agree(self, number: int) -> Waiting[int]:
        self._set("resume", [number, gpu_id(self._own_device)])
        found = yield from self._await("resume", range(self._leaders.size), 0.0)
        self._choose_device([gpu for _, gpu in found.values()])
        self._saved = min(number for number, _ in found.values())
        return int(self._saved)

    def _choose_device(self, gpus: Sequence[str]) -> None:
        """Exchange from GPU to GPU if every trainer has one of its own: NCCL does not connect two processes on one."""
        if not dist.is_nccl_available() or "" in gpus or len(set(gpus)) < len(gpus):
            return
        self._device = self._own_device
        with self._explaining("the first exchange"):  # in which all have to take part, unlike in later ones
            dist.all_reduce(torch.zeros(1, device=self._device), group=self._leaders.group)

    def close(self, finished: bool) -> None:
        self._state = {}

    def _set(self, what: str, value: Any) -> None:
        with self._explaining("the store of this run"):
            self._leaders.store.set(f"{what}/{self._leaders.index}", json.dumps(value))

    def _await(self, what: str, trainers: Sequence[int], limit_s: float) -> Waiting[dict[int, Any]]:
        """The values that trainers set under a key. Raises TrainingError if one of them does not come."""
        end = time.monotonic() + max(limit_s, LOST_S)
        found = {}
        for trainer in trainers:
            key = f"{what}/{trainer}"
            while True:
                with self._explaining(f"trainer {trainer}, {what}"):
                    if self._leaders.store.check([key]):
                        found[trainer] = json.loads(self._leaders.store.get(key).decode())
                        break
                if time.monotonic() > end:
                    raise TrainingError(f"{_lost(f'trainer {trainer}, {what}')} it did not come in time")
                yield
        return found

    def _pass_on(self, takers: Sequence[int], giver: int | None) -> State:
        """Send the own model to takers and receive the giver's."""
        packed = pack(self._state).to(self._device) if takers else torch.zeros(0, dtype=torch.uint8)
        size = torch.tensor([len(packed)], device=self._device)
        theirs = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._together([(size, taker) for taker in takers], [] if giver is None else [(theirs, giver)])
        received = torch.zeros(int(theirs), dtype=torch.uint8, device=self._device)
        self._together(
            [(piece, taker) for taker in takers for piece in packed.split(_PIECE_BYTES)],
            [] if giver is None else [(piece, giver) for piece in received.split(_PIECE_BYTES)],
        )
        return {} if giver is None else unpack(received.cpu())

    def _together(self, sent: Sequence[tuple[Tensor, int]], received: Sequence[tuple[Tensor, int]]) -> None:
        leaders = self._leaders
        ops = [dist.P2POp(dist.isend, t, leaders.rank_of(k), leaders.group) for t, k in sent]
        ops += [dist.P2POp(dist.irecv, t, leaders.rank_of(k), leaders.group) for t, k in received]
        for work in dist.batch_isend_irecv(ops) if ops else ():
            work.wait()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        """A lost process as an error that says what ties trainers together, unless the run is being stopped."""
        try:
            yield
        except (RuntimeError, OSError) as error:
            if self._stopping():
                raise RoundInterruptedError from error
            raise TrainingError(f"{_lost(what)} {error}") from error


def _lost(what: str) -> str:
    return (
        f"{what}: a process of this run was lost; with tournament.transport: process_group the trainers depend on "
        "each other, with files they do not:"
    )
