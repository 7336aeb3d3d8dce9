"""How a filled slot becomes the tensors that a trainer gets: in place, as copies, or on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from merlin.train.loading.batches import Array
from merlin.train.loading.producer import Planned, Ready

if TYPE_CHECKING:
    from merlin.train.loading.dataset import ShardDataset

VALID = "valid"
INDEX = "index"


class HostDelivery:
    """Tensors that share the slot's memory, or copies of them."""

    def __init__(self, dataset: ShardDataset, copy: bool, extras: tuple[str, ...], events: bool) -> None:
        self._dataset = dataset
        self._copy = copy
        self._extras = extras
        self._events: dict[int, Any] | None = {} if events else None

    def __call__(self, arrays: dict[str, Array], slot: int, planned: Planned) -> Ready:
        batch = self._dataset.tensors(arrays)
        if self._copy:
            batch = {key: values.clone() for key, values in batch.items()}
        return Ready(batch | _extra(self._extras, planned), slot, planned.consumed, None)

    def release(self, slot: int) -> None:
        """The trainer is done with a slot, but for copies to the GPU that it may have queued."""
        if self._events is not None:
            event = self._events.setdefault(slot, torch.cuda.Event())
            event.record()

    def wait_for(self, slot: int) -> None:
        if self._events and slot in self._events:
            self._events[slot].synchronize()


class DeviceDelivery:
    """Tensors on a device; copied, converted and normalised in a stream of their own."""

    def __init__(self, dataset: ShardDataset, device: torch.device, extras: tuple[str, ...]) -> None:
        self._dataset = dataset
        self._device = device
        self._extras = extras
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._copied: dict[int, Any] = {}

    def __call__(self, arrays: dict[str, Array], slot: int, planned: Planned) -> Ready:
        host = self._dataset.tensors(arrays) | _extra(self._extras, planned)
        if self._stream is None:
            batch = self._dataset.finish({key: values.to(self._device) for key, values in host.items()})
            return Ready(batch, slot, planned.consumed, None)
        with torch.cuda.stream(self._stream):
            there = {key: values.to(self._device, non_blocking=True) for key, values in host.items()}
            self._copied.setdefault(slot, torch.cuda.Event()).record(self._stream)
            batch = self._dataset.finish(there)
            done = torch.cuda.Event()
            done.record(self._stream)
        return Ready(batch, slot, planned.consumed, self._awaiting(batch, done))

    def _awaiting(self, batch: dict[str, Tensor], done: Any) -> Callable[[], None]:
        def wait() -> None:
            """Have the trainer's stream wait for the copies, and keep their memory until it has used them."""
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(done)
            for values in batch.values():
                values.record_stream(stream)

        return wait

    def release(self, slot: int) -> None:
        """What the trainer has does not lie in the slot."""

    def wait_for(self, slot: int) -> None:
        if slot in self._copied:
            self._copied[slot].synchronize()


def _extra(wanted: tuple[str, ...], planned: Planned) -> dict[str, Tensor]:
    made = {}
    if INDEX in wanted:
        made[INDEX] = torch.from_numpy(planned.indices)
    if VALID in wanted:
        made[VALID] = torch.arange(len(planned.indices)) < planned.num_valid
    return made
