"""How a filled slot becomes the tensors that a trainer gets: in place, as copies, or on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from msgspec import Struct
from torch import Tensor

from merlin.shards.format.segments import Array
from merlin.train.loading.dataset import ShardDataset
from merlin.train.loading.order import Planned

VALID = "valid"
INDEX = "index"


class Ready(Struct, frozen=True):
    """A batch that was read; its slot is given back when the trainer is done with it."""

    batch: dict[str, Tensor]
    slot: int
    consumed: int
    await_copy: Callable[[], None] | None  # to be called in the trainer's thread


class Delivery:
    """Makes tensors of the arrays of a slot.

    Without a device they share the slot's memory, or are copies of it. On a device they are normalised there; if it
    is a GPU, they are copied in a stream of their own.
    """

    def __init__(
        self, dataset: ShardDataset, device: torch.device | None, *, copy: bool, extras: tuple[str, ...]
    ) -> None:
        self._dataset, self._device, self._copy, self._extras = dataset, device, copy, extras
        self._stream = torch.cuda.Stream(device) if device is not None and device.type == "cuda" else None
        self._copied: dict[int, torch.cuda.Event] = {}

    def __call__(self, arrays: dict[str, Array], slot: int, planned: Planned) -> Ready:
        batch = self._dataset.tensors(arrays)
        if INDEX in self._extras:
            batch[INDEX] = torch.from_numpy(planned.indices)
        if VALID in self._extras:
            batch[VALID] = torch.arange(len(planned.indices)) < planned.num_valid
        if self._stream is not None:
            return self._on_gpu(batch, slot, planned, self._stream)
        if self._device is not None:
            batch = self._dataset.finish({key: values.to(self._device) for key, values in batch.items()})
        elif self._copy:
            batch = {key: values.clone() for key, values in batch.items()}
        return Ready(batch, slot, planned.consumed, None)

    def _on_gpu(
        self, batch: dict[str, Tensor], slot: int, planned: Planned, stream: torch.cuda.Stream
    ) -> Ready:
        with torch.cuda.stream(stream):
            copies = {key: values.to(self._device, non_blocking=True) for key, values in batch.items()}
            self._copied.setdefault(slot, torch.cuda.Event()).record(stream)
            made = self._dataset.finish(copies)
            done = torch.cuda.Event()
            done.record(stream)

        def wait() -> None:
            """Have the trainer's stream wait for the copies, and keep their memory until it has used them."""
            trainers = torch.cuda.current_stream(self._device)
            trainers.wait_event(done)
            for values in made.values():
                values.record_stream(trainers)

        return Ready(made, slot, planned.consumed, wait)

    def wait_for(self, slot: int) -> None:
        """Return when no copy to the GPU reads from the slot any more."""
        if slot in self._copied:
            self._copied[slot].synchronize()
