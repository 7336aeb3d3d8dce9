"""Batches for a trainer: shuffled, dealt to ranks, read ahead, resumable at any step.

loader = ShardLoader(dataset, batch_size=128, seed=1)
for epoch in range(10):
    for batch in loader:
        step(batch["inputs"], batch["image"])
    save(model, loader.state_dict())
"""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from merlin.base.records import FileFormat
from merlin.errors import LoaderError, UsageError
from merlin.train.loading.dataset import ShardDataset
from merlin.train.loading.delivery import INDEX, VALID, Delivery
from merlin.train.loading.order import EpochOrder, EpochSteps, plan_batches
from merlin.train.loading.producer import Filler, Producer
from merlin.train.loading.ring import Ring
from merlin.train.loading.workers import LoaderPool

FORMAT = FileFormat("merlin-loader", 1)

Batch = dict[str, Tensor]


class ShardLoader:
    """An endless sequence of epochs of batches, and a place in it.

    A `for` loop runs from the present place to the end of the epoch, after which the place is the beginning of the
    next. One that is left early, and one after `load_state_dict`, is continued by the next `for`. The order of an
    epoch is a function of (seed, epoch) alone; the batch of a rank is one of (seed, epoch, step, world_size).

    Attributes: `epoch` is the one that the next batch belongs to, from 0; `consumed` are the samples of it that all
    ranks together have been handed.

    Tensors on the CPU lie in memory that is used again: a batch is valid until the next but one is asked for. Keep
    `clone()`s of what has to live longer, or ask for `copy=True`.

    Args:
        batch_size: samples per rank and step.
        rank, world_size: which of how many processes; those of torch.distributed by default, if it is set up.
        shuffle: a new random order each epoch; else ascending.
        drop_last: leave out what does not fill whole batches of all ranks. Otherwise the last step's samples are
            divided evenly, so that batches are smaller and may be empty, or with `pad_last` filled up from the
            beginning of the epoch, in which case batches have "valid" (n,) bool, false for what is there twice.
        prefetch: batches read ahead (of each worker), in another thread; 0 reads in the trainer's thread.
        num_workers: processes that read; none are needed unless decompression is what takes the time. They live
            until `close`, or until the loader is gone.
        start_method: of the processes: fork, spawn or forkserver; Python's usual one by default.
        device: where the tensors shall be, copied ahead in a stream of its own if it is a GPU, and normalised there.
        copy: hand out tensors that stay valid.
        with_index: add "index" (n,), the numbers of the samples in the data set.

    Raises UsageError for arguments that contradict each other. Iterating raises ShardError for damaged shards, and
    LoaderError if a worker died.
    """

    def __init__(
        self,
        dataset: ShardDataset,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        pad_last: bool = False,
        prefetch: int = 2,
        num_workers: int = 0,
        start_method: str | None = None,
        device: str | torch.device | None = None,
        copy: bool = False,
        with_index: bool = False,
    ) -> None:
        _require_whole(batch_size=batch_size, seed=seed)
        rank, world_size = _place(rank, world_size)
        if not 0 <= rank < world_size or prefetch < 0 or num_workers < 0:
            raise UsageError(f"rank {rank} of {world_size}, prefetch {prefetch}, num_workers {num_workers}?")
        if start_method not in (None, *multiprocessing.get_all_start_methods()):
            raise UsageError(f"start_method is fork, spawn or forkserver, not {start_method!r}")
        self.dataset = dataset
        self.batch_size = batch_size
        self.rank, self.world_size = rank, world_size
        self.seed, self.shuffle = seed, shuffle
        self.steps = EpochSteps(len(dataset), batch_size, world_size, drop_last, pad_last)
        self._device = _device(device)
        self._extras = (INDEX,) * with_index + (VALID,) * pad_last
        if twice := set(self._extras) & set(dataset.keys):
            raise UsageError(f"a field is called {twice} as what the loader adds; leave it out with fields=")
        self._copy = copy
        self._prefetch = max(prefetch, 1) if num_workers else prefetch
        self._num_workers, self._start_method = num_workers, start_method
        self.epoch, self.consumed = 0, 0
        self._filler: Filler | None = None
        self._iterator: weakref.ref[_EpochBatches] | None = None

    def __len__(self) -> int:
        """The number of batches in a whole epoch."""
        return self.steps.num_steps()

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the rest of the epoch; this ends an iterator that was made before."""
        self._end_iterator()
        made = _EpochBatches(self)
        self._iterator = weakref.ref(made)
        return made

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; stay at the present place if that is in this epoch."""
        if epoch != self.epoch:
            self.seek(epoch)

    def seek(self, epoch: int, consumed: int = 0) -> None:
        """Go to where `consumed` samples of an epoch have been handed out."""
        if epoch < 0 or not 0 <= consumed <= self.steps.size:
            raise UsageError(f"there is no sample {consumed} of {self.steps.size} in epoch {epoch}")
        self._end_iterator()
        self.epoch, self.consumed = epoch, consumed

    def state_dict(self) -> dict[str, Any]:
        """The place after the batch handed out last: plain numbers and text, the same on every rank."""
        return {
            **FORMAT.head(),
            "epoch": self.epoch,
            "consumed": self.consumed,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "samples": self.dataset.fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go where a loader of the same samples was, whatever its batch size, world size and workers.

        Raises LoaderError if the seed or the samples are others, or if it is no state of a loader.
        """
        if wrong := FORMAT.mismatch(state):
            raise LoaderError(f"not a state of a loader: {wrong}")
        mine = {
            "seed": (self.seed,),
            "shuffle": (self.shuffle,),
            "samples": (self.dataset.fingerprint, self.dataset.earlier_fingerprint),
        }
        if missing := [key for key in ("epoch", "consumed", *mine) if key not in state]:
            raise LoaderError(f"not a state of a loader: it lacks {', '.join(missing)}")
        other = next((key for key, values in mine.items() if state[key] not in values), None)
        if other is not None:
            what = "other samples" if other == "samples" else f"{other}={state[other]}"
            raise LoaderError(
                f"the state is of a loader with {what}, so its order is not this one's; "
                "make the loader as it was, or begin an epoch: loader.seek(epoch)"
            )
        self.seek(state["epoch"], state["consumed"])

    def close(self) -> None:
        """End the reading thread and the worker processes; iterating starts them again."""
        self._end_iterator()
        if self._filler is not None:
            self._filler.close()
        self._filler = None

    def __enter__(self) -> ShardLoader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_filler": None, "_iterator": None}

    def _end_iterator(self) -> None:
        running = None if self._iterator is None else self._iterator()
        if running is not None:
            running.close()
        self._iterator = None

    def _make_filler(self) -> Filler:
        raw, num = self._device is not None, self._num_workers
        reader = self.dataset.reader(raw)
        pinned = self._device is not None and self._device.type == "cuda"
        num_slots = self._prefetch * max(1, num) + 2
        most = self.batch_size if self.steps.pad_last else min(self.batch_size, len(self.dataset))
        ring = Ring.make(reader.layout(most), num_slots, shared=num > 0, pinned=pinned)
        pool = LoaderPool(self.dataset, raw, ring, num, self._start_method) if num else None
        delivery = Delivery(self.dataset, self._device, copy=self._copy, extras=self._extras)
        return Filler(reader, ring.slots(), delivery, pool)

    def _read_ahead(self) -> tuple[Filler, Producer]:
        """Reading from the present place on, into slots that the trainer does not hold."""
        if self._filler is None or not self._filler.usable:
            self._filler = self._make_filler()
        order = EpochOrder(self.steps.size, self.seed, self.epoch, self.shuffle)
        plan = plan_batches(order, self.steps, self.consumed, self.rank)
        return self._filler, Producer(plan, self._filler, threaded=self._prefetch > 0)


class _EpochBatches(Iterator[Batch]):
    """The rest of one epoch."""

    def __init__(self, loader: ShardLoader) -> None:
        self._loader = loader
        self._pid = os.getpid()
        self._ended = False
        self._filler, self._producer = loader._read_ahead()

    def __next__(self) -> Batch:
        if self._ended:
            raise StopIteration
        if self._pid != os.getpid():
            raise LoaderError("an iterator cannot be continued in a forked process; call iter(loader) there")
        held = self._filler.held
        if len(held) == 2:
            self._producer.give_back(held.popleft())
        try:
            ready = self._producer.next()
        except Exception:
            self.close()
            raise
        if ready is None:
            self.close()
            self._loader.epoch, self._loader.consumed = self._loader.epoch + 1, 0
            raise StopIteration
        held.append(ready.slot)
        self._loader.consumed = ready.consumed
        if ready.await_copy is not None:
            ready.await_copy()
        return ready.batch

    def close(self) -> None:
        self._ended = True
        self._producer.close()


def _require_whole(**arguments: object) -> None:
    """Raise UsageError for an argument that is no whole number."""
    for name, value in arguments.items():
        if not isinstance(value, int | np.integer):
            raise UsageError(f"{name} has to be a whole number, not {value!r}")


def _device(wanted: str | torch.device | None) -> torch.device | None:
    """The device that batches are copied to; None for the CPU. Raises UsageError if torch knows no such device."""
    try:
        device = torch.device("cpu" if wanted is None else wanted)
    except RuntimeError as error:
        raise UsageError(f"{wanted!r} is no device; write cpu, cuda or cuda:N") from error
    return None if device.type == "cpu" else device


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: as given, else those of torch.distributed, else alone."""
    if (rank is None) != (world_size is None):
        raise UsageError("rank and world_size go together")
    if rank is not None and world_size is not None:
        return rank, world_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
