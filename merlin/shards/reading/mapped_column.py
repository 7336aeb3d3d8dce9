"""One uncompressed column of all shards as one array, so that a gather is one call.

Each shard's part gets a place whose address is a whole number of items from the first: the items between the end of
one part and the next place do not exist, and are never touched.
"""

from __future__ import annotations

import math
import os

import numpy as np

from merlin.base.ranges import distinct
from merlin.errors import ShardError, command_line
from merlin.shards.format.segments import Array
from merlin.shards.reading.address_range import PAGE, AddressRange
from merlin.shards.reading.shard_file import Contiguous, ShardFile
from merlin.shards.reading.shard_files import ShardFiles
from merlin.shards.reading.sharing import ForkLock

_COPIED_BYTES = 1 << 20  # parts up to this size that do not start at a page are copied
_LARGE_PAGE = 1 << 21
_MAX_BYTES = 1 << 46  # of address space for one column


class MappedColumn:
    """`items[first[shard] + i]` is item i of a shard, once `place` has been called for it."""

    def __init__(self, files: ShardFiles, path: str, capacities: Array) -> None:
        """`capacities` (shards,): bytes that the parts have at most. Raises OSError if that is too much."""
        dtype, shape = files.layout(path)
        self._files = files
        self._path = path
        self.item_bytes = dtype.itemsize * math.prod(shape)
        self._capacities = capacities
        self._alignment = self._align(capacities)
        unit = math.lcm(self.item_bytes, self._alignment)
        ends = np.cumsum(-(-capacities // unit), dtype=np.int64)
        size = int(ends[-1]) * unit if len(ends) else 0
        if size > _MAX_BYTES:
            raise OSError(f"{path}: no address space for {size} bytes")
        self.first = np.concatenate(([0], ends[:-1])) * (unit // self.item_bytes)
        self._range = AddressRange(size + 2 * self._alignment)
        self._shape = (size // self.item_bytes, *shape)
        self._begin: int | None = None  # where the array begins in the range
        self.items: Array  # set once a part is there
        self._is_placed = np.zeros(len(capacities), dtype=bool)
        self._num_missing = len(capacities)
        self._lock = ForkLock()
        self.is_usable = True

    def _align(self, capacities: Array) -> int:
        """The unit modulo which addresses equal places in the files: 2 MiB for large parts, else a page.

        Processors then look up pages of 2 MiB, and a gather of 64 KiB rows takes a fifth less time. Small
        parts follow each other and end at pages.
        """
        unit = math.lcm(self.item_bytes, _LARGE_PAGE)
        is_worth_it = self.item_bytes >= PAGE and int(capacities.max(initial=0)) >= 2 * _LARGE_PAGE
        fits = int((-(-capacities // unit)).sum()) * unit <= _MAX_BYTES
        return _LARGE_PAGE if is_worth_it and fits else PAGE

    @property
    def is_complete(self) -> bool:
        """True if every part is there."""
        return not self._num_missing

    def place(self, shards: Array) -> bool:
        """Place the parts of `shards` (n,) that are not there yet; False if this column cannot be read this way."""
        if not self._num_missing:
            return True
        for shard in distinct(shards[~self._is_placed[shards]]).tolist():
            with self._lock:
                self.is_usable = self.is_usable and (self._is_placed[shard] or self._place(shard))
        return self.is_usable

    def _begin_for(self, offset: int) -> int:
        """Where the array begins: decided by the first part, which begins at `offset` in its file."""
        if self._begin is None:
            shift = offset // PAGE * PAGE - self._range.address
            self._begin = shift % self._alignment
            self.items = self._range.array(self._files.layout(self._path)[0], self._shape, at=self._begin)
        return self._begin

    def _place(self, shard: int) -> bool:
        def place(file: ShardFile) -> bool:
            stored = self._files.find(shard, file, self._path)
            if not isinstance(stored, Contiguous):
                return False
            size = stored.num * self.item_bytes
            if size > self._capacities[shard]:  # written again: it would cover the next shard's part
                return False
            at = self._begin_for(stored.offset) + int(self.first[shard]) * self.item_bytes
            if stored.offset % PAGE and size > _COPIED_BYTES:
                return False
            with file.opened() as descriptor:
                if stored.offset % PAGE:
                    self._range.write(at, os.pread(descriptor, size, stored.offset))
                else:
                    self._range.place(at, descriptor, stored.offset, size)
            return True

        try:
            if not self._files.use(shard, place):
                return False
        except OSError:  # for example too many maps
            return False
        except ValueError as e:
            raise ShardError(
                f"{self._path}: {e}; run {command_line('shards', 'verify', self._files.data.directory)}"
            ) from e
        self._is_placed[shard] = True
        self._num_missing -= 1
        return True
