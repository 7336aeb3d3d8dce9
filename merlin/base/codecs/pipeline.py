"""Undo the filters of a data set outside of the HDF5 library, whose lock lets one thread work at a time.

The filters are those that HDF5 itself would call. A pipeline with anything else is left to the library.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from merlin.base.codecs.codec import Options, Stage, copy_exactly
from merlin.base.codecs.shuffles import UNDO, has_compressor
from merlin.base.compression import CODECS

Array = np.ndarray[Any, Any]

_UNDO = UNDO | {number: make for codec in CODECS.values() for number, make in codec.undo.items()}


class Pipeline:
    """The filters of one data set, undone last to first; chunks are `size` bytes when decoded."""

    def __init__(self, stages: list[Stage], size: int) -> None:
        """`stages` in the order in which they were applied."""
        self._stages = stages
        self.size = size
        self._local = threading.local()

    def decode(self, stored: Array, mask: int, out: Array) -> None:
        """Decode the bytes of one chunk into `out`, `size` contiguous bytes.

        Bit i of `mask` says that filter i was not applied. Raises DecodeError.
        """
        todo = [stage for i, stage in enumerate(self._stages) if not mask >> i & 1]
        if not todo:
            copy_exactly(stored, out)
        for number, stage in enumerate(reversed(todo)):
            # all but the first one here, the compressor, keep the size
            target = out if number == len(todo) - 1 else self._scratch(number)
            stage(stored, target)
            stored = target

    def _scratch(self, number: int) -> Array:
        """A thread's own memory between two stages."""
        kept: dict[int, Array] = self._local.__dict__.setdefault("scratch", {})
        if number not in kept:
            kept[number] = np.empty(self.size, np.uint8)
        return kept[number]


def make_pipeline(filters: Sequence[tuple[int, Options]], size: int) -> Pipeline | None:
    """The pipeline of a data set from its filters' (number, options); None: only the library can undo it."""
    stages = [_UNDO[number](options) if number in _UNDO else None for number, options in filters]
    known = [stage for stage in stages if stage is not None]
    if len(known) < len(stages) or any(has_compressor(*one) for one in filters[:-1]):
        return None
    return Pipeline(known, size)
