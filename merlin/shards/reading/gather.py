"""Rows of mapped files, copied in any order; those that are not in memory are read together.

A page fault reads one place at a time, and as much of the file around it as the system is set to read ahead: from
128 KiB to several MiB, which is right for a file that is read from end to end, and wasted on scattered rows. Rows that
are asked for beforehand are read side by side, and nothing else is.
"""

from __future__ import annotations

import resource
from functools import partial
from itertools import pairwise

import numpy as np

from merlin.shards.format.aligned import CACHE_LINE, copy_rows
from merlin.shards.format.segments import Array
from merlin.shards.reading.address_range import ask_for
from merlin.shards.reading.sharing import Workers

LARGE_BYTES = 4096  # items from here on are copied one by one; smaller ones by a vectorised gather
_WORTH_ASKING_BYTES = 64 << 10  # of a gather
_ASKED_BYTES = 16 << 20  # at once
_BYTES_PER_THREAD = 2 << 20  # at least


class Gather:
    """Copies rows of mapped columns, large ones in several threads; notes if they came from the disk.

    Asking the system for a row beforehand costs a tenth of copying it. So rows are no longer asked for after
    the first gather for which nothing had to be read, and are again after copying has waited for the disk.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self.is_cold = True

    def rows(self, items: Array, wanted: Array, out: Array) -> None:
        """out[k] = items[wanted[k]]; rows of `items` are contiguous, `out` is C-contiguous."""
        if items.strides[0] < LARGE_BYTES or out.nbytes < _WORTH_ASKING_BYTES:
            _copy(items, wanted, out)
            return
        num = max(1, min(self._workers.threads, out.nbytes // _BYTES_PER_THREAD))
        cuts = [len(wanted) * k // num for k in range(num + 1)]
        has_waited: list[bool] = []
        copy = _ask_and_copy if self.is_cold else _copy_and_look
        self._workers.run(
            [partial(copy, items, wanted[a:b], out[a:b], has_waited) for a, b in pairwise(cuts)]
        )
        self.is_cold = any(has_waited)


def _copy_and_look(items: Array, wanted: Array, out: Array, has_waited: list[bool]) -> None:
    faults, _ = _waits_for_disk()
    _copy(items, wanted, out)
    has_waited.append(_waits_for_disk()[0] > faults)


def _ask_and_copy(items: Array, wanted: Array, out: Array, has_waited: list[bool]) -> None:
    before = _waits_for_disk()
    num = max(1, _ASKED_BYTES // items.strides[0])
    _ask(items, wanted[:num])
    for lo in range(0, len(wanted), num):
        _ask(items, wanted[lo + num : lo + 2 * num])
        _copy(items, wanted[lo : lo + num], out[lo : lo + num])
    has_waited.append(_waits_for_disk() > before)


def _copy(items: Array, wanted: Array, out: Array) -> None:
    if items.strides[0] >= LARGE_BYTES and out.ctypes.data % CACHE_LINE:
        copy_rows(items, wanted.tolist(), out, range(len(out)))
    else:
        np.take(items, wanted, axis=0, out=out, mode="clip")  # "raise" would go through a copy


def _ask(items: Array, wanted: Array) -> None:
    first, size = items.ctypes.data, items.strides[0]
    for begin in (first + wanted * size).tolist():
        ask_for(begin, size)


def _waits_for_disk() -> tuple[int, int]:
    """(page faults, blocks) that this thread has read from a disk so far."""
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_majflt, usage.ru_inblock
