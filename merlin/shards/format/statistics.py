"""Count, minimum, maximum, mean and standard deviation, per channel for images, mergeable over shards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from merlin.shards.format.segments import Array

Reals = tuple[float, ...]
Channel = tuple[int, float, float, float, float]  # count, min, max, mean, m2

_STORED = ("min", "max", "mean", "m2")

_WIDTH = 4096  # running numbers that stay in a core's first cache
_CACHED_BYTES = 1 << 20  # what is worked on at once
_MIN_ROWS = 16  # fewer are not worth the work that follows
_CLOSE = 4.0  # up to this squared mean / variance, float32 loses next to nothing of a variance
_UNDEFINED = np.errstate(over="ignore", invalid="ignore")  # what float64 cannot hold becomes undefined
_MAX_ROWS = 64  # summed up in the values' own precision, before float64 takes over


class Statistics:
    """One entry per channel (a single one for fields without channels); over the finite values only.

    `m2` is the sum of squared deviations from the mean, which is what can be merged. What is undefined (no finite
    values, or squares that float64 cannot hold) is not finite, in JSON null.
    """

    __slots__ = ("count", "m2", "max", "mean", "min")

    def __init__(self, count: tuple[int, ...], min: Reals, max: Reals, mean: Reals, m2: Reals) -> None:
        self.count, self.min, self.max, self.mean, self.m2 = count, min, max, mean, m2

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Statistics) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.count)

    @property
    def std(self) -> Reals:
        """Population standard deviation."""
        return tuple(math.sqrt(q / n) if n else math.nan for q, n in zip(self.m2, self.count, strict=True))

    @property
    def constant(self) -> tuple[bool, ...]:
        """Whether all values of a channel are the same."""
        return tuple(low == high for low, high in zip(self.min, self.max, strict=True))

    @property
    def has_spread(self) -> bool:
        """Whether `std` is known of all channels that vary; not so if float64 cannot hold the squares of values."""
        return all(c or 0 < m2 < math.inf for c, m2 in zip(self.constant, self.m2, strict=True))

    @property
    def channels(self) -> list[Channel]:
        return list(zip(self.count, self.min, self.max, self.mean, self.m2, strict=True))

    @property
    def num_channels(self) -> int:
        return len(self.count)

    def to_json(self) -> dict[str, Any]:
        """Lists per channel."""
        names = ("min", "max", "mean", "m2", "std")
        known = {name: [x if math.isfinite(x) else None for x in getattr(self, name)] for name in names}
        return {"count": list(self.count), **known}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Statistics:
        found = [tuple(math.nan if x is None else float(x) for x in data[name]) for name in _STORED]
        return Statistics(tuple(int(n) for n in data["count"]), *found)


def merge(parts: Sequence[Statistics | None]) -> Statistics | None:
    """Statistics of the union (Chan, Golub and LeVeque's pairwise update), in the order given.

    None if they are not known for a part: shards of some earlier versions have none.
    """
    total: Statistics | None = None
    for part in parts:
        if part is None:
            return None
        total = part if total is None else _merge_two(total, part)
    return total


def _merge_two(a: Statistics, b: Statistics) -> Statistics:
    merged = [_merge_channel(one, other) for one, other in zip(a.channels, b.channels, strict=True)]
    return Statistics(*zip(*merged, strict=True))


def _merge_channel(a: Channel, b: Channel) -> Channel:
    (n, low_a, high_a, mean, m2_a), (m, low_b, high_b, mean_b, m2_b) = a, b
    if not n or not m:
        return a if n else b
    delta, total = mean_b - mean, n + m
    m2 = m2_a + m2_b + delta * delta * n * m / total
    return total, min(low_a, low_b), max(high_a, high_b), mean + delta * m / total, m2


def channel_period(shape: tuple[int, ...], axis: int | None) -> int:
    """After how many values of a row (of this shape) the channels begin again: 1 without channels."""
    return 1 if axis is None else max(1, math.prod(shape[axis:]))


def running(values: Array, shape: tuple[int, ...], axis: int | None) -> Array:
    """One number per channel (c,), repeated for the places of the rows that `side_by_side` makes."""
    period = channel_period(shape, axis)
    return np.tile(np.repeat(values, period // len(values)), max(1, _WIDTH // period))


def side_by_side(block: Array, period: int) -> Iterator[Array]:
    """The values of a block, in order, as rows of a multiple of `period`.

    NumPy reduces such rows fastest along axis 0. All have the same length, except the last one, which may be
    shorter.
    """
    flat = block.reshape(-1)
    width = period * max(1, _WIDTH // period)
    full = len(flat) // width * width
    step = width * min(_MAX_ROWS, max(_MIN_ROWS, _CACHED_BYTES // (flat.dtype.itemsize * width)))
    for lo in range(0, full, step):
        yield flat[lo : min(lo + step, full)].reshape(-1, width)
    if full < len(flat):
        yield flat[full:].reshape(1, -1)


class Accumulator:
    """Collects the statistics of one field over blocks of rows.

    Works with many running numbers for each channel, which the processor does at once, and folds them at the end.
    Sums are taken of deviations from the first block's mean, so that a large mean does not swallow a small spread;
    where the spread is large, of the values themselves.
    """

    def __init__(self, shape: tuple[int, ...], axis: int | None) -> None:
        self._shape, self._axis = shape, axis
        self._period = channel_period(shape, axis)
        self._channels = 1 if axis is None else max(1, min(shape[axis], self._period))
        size = self._period * max(1, _WIDTH // self._period)
        self._shift: Array | None = None
        self._is_shifted = True
        self._count = np.zeros(size, dtype=np.int64)
        self._sum = np.zeros(size)
        self._squares = np.zeros(size)
        self._min = np.full(size, np.inf)
        self._max = np.full(size, -np.inf)
        self._memory = np.empty((0, size), dtype=np.float32)  # fresh memory costs more than the arithmetic

    @_UNDEFINED
    def add(self, block: Array) -> None:
        """Add a block (m, *shape) of real numbers."""
        for some in side_by_side(block, self._period):
            self._add_some(some)

    def _add_some(self, some: Array) -> None:
        """Add rows of a multiple of the period."""
        low, high = some.min(axis=0), some.max(axis=0)
        finite: Array | None = None
        lowest, highest = float(low.min()), float(high.max())
        count: Array | int = len(some)
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            finite = np.isfinite(some)
            low = np.where(finite, some, np.inf).min(axis=0)
            high = np.where(finite, some, -np.inf).max(axis=0)
            count = finite.sum(axis=0)
        here = slice(0, some.shape[1])
        self._count[here] += count
        np.minimum(self._min[here], low, out=self._min[here])
        np.maximum(self._max[here], high, out=self._max[here])
        if self._shift is None:
            self._shift = self._first_shift(some, finite)
        deviations = self._deviations(some, finite, max(abs(lowest), abs(highest)))
        self._sum[here] += deviations.sum(axis=0)
        self._squares[here] += np.einsum("ij,ij->j", deviations, deviations)

    def _deviations(self, some: Array, finite: Array | None, reach: float) -> Array:
        """Differences from the shift, in float32 if that loses nothing that the values have, else in float64."""
        assert self._shift is not None
        width = some.shape[1]
        # in between the squares neither overflow nor vanish
        is_narrow = some.dtype == self._shift.dtype == np.float32
        if finite is None and is_narrow and (reach == 0 or 1e-12 < reach < 1e15):
            if not self._is_shifted:
                return some
            if self._memory.size < some.size:
                self._memory = np.empty_like(some)
            out = self._memory.reshape(-1)[: some.size].reshape(some.shape)
            return np.subtract(some, self._shift[:width], out=out)
        wide = some.astype(np.float64)
        wide -= self._shift[:width]
        if finite is not None:
            wide[~finite] = 0.0
        return wide

    def _fold(self, values: Array, how: np.ufunc) -> Array:
        """Reduce the running numbers to one per channel."""
        inner = self._period // self._channels
        return np.asarray(how.reduce(values.reshape(-1, self._channels, inner), axis=(0, 2)))

    def _first_shift(self, some: Array, finite: Array | None) -> Array:
        """For each running number its channel's mean; 0 for all if no mean is large beside its spread."""
        wide = some.astype(np.float64)
        known = wide if finite is None else np.where(finite, wide, 0.0)
        count = np.maximum(self._fold(self._count, np.add), 1)
        mean = self._fold(known.sum(axis=0), np.add) / count
        square = self._fold((known * known).sum(axis=0), np.add) / count
        self._is_shifted = bool((mean * mean > _CLOSE * (square - mean * mean)).any())
        mean = mean if self._is_shifted else np.zeros_like(mean)
        if some.dtype == np.float32:
            mean = mean.astype(np.float32)  # which both values and sums can take exactly
        return running(mean, self._shape, self._axis)

    @_UNDEFINED
    def result(self) -> Statistics:
        counts, total = self._fold(self._count, np.add), self._fold(self._sum, np.add)
        squares = self._fold(self._squares, np.add)
        low, high = self._fold(self._min, np.minimum), self._fold(self._max, np.maximum)
        shift = 0.0 if self._shift is None else self._fold(self._shift, np.maximum)
        n = np.maximum(counts, 1)
        known = counts > 0
        return Statistics(
            tuple(counts.tolist()),
            tuple(np.where(known, low, np.nan).tolist()),
            tuple(np.where(known, high, np.nan).tolist()),
            tuple(np.where(known, shift + total / n, np.nan).tolist()),
            tuple(np.maximum(squares - total * total / n, 0.0).tolist()),
        )
