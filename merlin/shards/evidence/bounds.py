"""The ranges that statistics promise, and the rows that break the promise."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct

from merlin.shards.format.manifest_file import FieldInfo
from merlin.shards.format.segments import Array
from merlin.shards.format.shard_info import DatasetInfo
from merlin.shards.format.statistics import channel_period, running, side_by_side


class Bounds(Struct, frozen=True, dict=True):
    """Least and greatest value of each channel, and whether all values were finite."""

    low: Array  # (channels,)
    high: Array
    axis: int | None  # of a row, along which channels differ
    shape: tuple[int, ...]  # of a row
    is_finite: bool

    def broken(self, block: Array) -> Array | None:
        """Which rows of a block (m, *shape) have a value out of range: bool (m,); None if no row has.

        NaN and infinity break the range of a column that had none, and no other.
        """
        if not block.size or self._holds(block):
            return None
        bad = ~((block >= self._spread(self.low)) & (block <= self._spread(self.high)))
        if not self.is_finite:
            bad &= np.isfinite(block)
        rows = np.asarray(bad.reshape(len(block), -1).any(axis=1))
        return rows if rows.any() else None

    def _holds(self, block: Array) -> bool:
        """A quick check: if it is true, no value breaks the bounds; NaN makes it false."""
        if len(self.low) == 1:
            return bool(block.min() >= self.low[0] and block.max() <= self.high[0])
        low, high = self._running
        return all(
            bool((some.min(axis=0) >= low[: some.shape[1]]).all())
            and bool((some.max(axis=0) <= high[: some.shape[1]]).all())
            for some in side_by_side(block, channel_period(self.shape, self.axis))
        )

    @cached_property
    def _running(self) -> tuple[Array, Array]:
        return running(self.low, self.shape, self.axis), running(self.high, self.shape, self.axis)

    def _spread(self, values: Array) -> Array:
        """One value per channel as an array that fits a row."""
        if self.axis is None or len(values) == 1:
            return values.reshape([1] * len(self.shape))
        places = [1] * len(self.shape)
        places[self.axis] = -1
        return np.asarray(np.broadcast_to(values.reshape(places), self.shape))

    def broken_anywhere(self, values: Array) -> bool:
        """For a piece of a row (any shape): whether a value is outside the ranges of all channels."""
        if not values.size:
            return False
        low, high = self.low.min(), self.high.max()
        if values.min() >= low and values.max() <= high:
            return False
        bad = ~((values >= low) & (values <= high))
        return bool((bad if self.is_finite else bad & np.isfinite(values)).any())


def bounds_of(dataset: DatasetInfo, field: FieldInfo | None) -> Bounds | None:
    """What the recorded statistics of a data set promise; None if nothing was recorded about its values."""
    statistics = dataset.statistics
    if statistics is None or dataset.name.endswith("/offsets"):
        return None
    # where no value was finite there is no least and no greatest, and none may be finite now
    low = np.nan_to_num(np.array(statistics.min), nan=np.inf)
    high = np.nan_to_num(np.array(statistics.max), nan=-np.inf)
    num_values = int(np.prod(dataset.shape, dtype=np.int64))
    axis = field.channel_axis if field is not None else None
    shape = dataset.shape[1:]
    if len(low) > 1 and (axis is None or axis >= len(shape) or shape[axis] != len(low)):
        low, high, axis = low.min(keepdims=True), high.max(keepdims=True), None
    return Bounds(low, high, axis, shape, sum(statistics.count) == num_values)
