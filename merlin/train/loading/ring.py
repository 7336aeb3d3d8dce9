"""The memory that batches are read into: a ring of slots, allocated once."""

from __future__ import annotations

import contextlib
import weakref

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from merlin.errors import LoaderError
from merlin.shards.format.segments import Array
from merlin.train.loading.batches import Layout

PAGE = 4096


class Ring(Struct, frozen=True):
    """`num_slots` slots of arrays, each of which starts on a page, in one block of memory."""

    memory: Tensor  # uint8
    layout: Layout
    num_slots: int

    @staticmethod
    def make(layout: Layout, num_slots: int, *, shared: bool, pinned: bool) -> Ring:
        """Memory that other processes share, or that the GPU copies from directly, or both.

        Raises LoaderError if there is not enough of it.
        """
        num_bytes = _slot_bytes(layout) * num_slots + PAGE
        try:
            if shared:
                memory = torch.empty(num_bytes, dtype=torch.uint8).share_memory_()
            elif pinned:
                memory = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
            else:
                memory = torch.from_numpy(np.empty(num_bytes, np.uint8))  # which asks for huge pages
        except (RuntimeError, OSError, MemoryError) as e:
            kind = "shared memory (/dev/shm)" if shared else "pinned memory" if pinned else "memory"
            raise LoaderError(
                f"{num_bytes >> 20} MiB of {kind} for {num_slots} batches cannot be had: {e}; "
                "use smaller batches, or fewer of them: prefetch=, num_workers="
            ) from e
        if pinned and shared:
            _pin(memory)
        return Ring(memory, layout, num_slots)

    def slots(self) -> list[dict[str, Array]]:
        """The arrays of each slot."""
        block = self.memory.numpy()
        at = -block.ctypes.data % PAGE
        made = []
        for _ in range(self.num_slots):
            slot = {}
            for key, (shape, dtype) in self.layout.items():
                num_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
                slot[key] = block[at : at + num_bytes].view(dtype).reshape(shape)
                at += _pages(num_bytes)
            made.append(slot)
        return made


def _slot_bytes(layout: Layout) -> int:
    return sum(_pages(t.itemsize * int(np.prod(shape, dtype=np.int64))) for shape, t in layout.values())


def _pages(num_bytes: int) -> int:
    return -(-num_bytes // PAGE) * PAGE


def _pin(memory: Tensor) -> None:
    """Lock shared memory for the GPU; if that fails, copies are slower, and nothing else changes."""
    runtime = torch.cuda.cudart()
    if int(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 0)) == 0:
        weakref.finalize(memory, _unpin, memory.data_ptr())


def _unpin(address: int) -> None:
    with contextlib.suppress(RuntimeError):
        torch.cuda.cudart().cudaHostUnregister(address)
