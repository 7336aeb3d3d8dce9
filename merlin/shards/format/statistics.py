"""Count, minimum, maximum, mean and standard deviation, per channel for images, mergeable over shards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from merlin.study.plan import Field

if TYPE_CHECKING:
    from merlin.shards.format.manifest_file import FieldInfo

_CACHED_BYTES = 1 << 20  # what is worked on at once
_MAX_ROWS = 64  # summed up in the values' own precision, before float64 takes over


@dataclass(frozen=True, slots=True)
class Statistics:
    """One entry per channel (a single one for fields without channels); over the finite values only.

    `m2` is the sum of squared deviations from the mean, which is what can be merged.
    """

    count: tuple[int, ...]
    min: tuple[float, ...]
    max: tuple[float, ...]
    mean: tuple[float, ...]
    m2: tuple[float, ...]

    @property
    def std(self) -> tuple[float, ...]:
        """Population standard deviation."""
        return tuple(math.sqrt(q / n) if n else math.nan for q, n in zip(self.m2, self.count, strict=True))

    @property
    def num_channels(self) -> int:
        return len(self.count)

    def to_json(self) -> dict[str, Any]:
        """Lists per channel; what is undefined (no finite values) is null, as JSON has no NaN."""
        names = ("min", "max", "mean", "m2")
        known = {name: [x if math.isfinite(x) else None for x in getattr(self, name)] for name in names}
        std = [x if math.isfinite(x) else None for x in self.std]
        return {"count": list(self.count), **known, "std": std}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Statistics:
        def floats(name: str) -> tuple[float, ...]:
            return tuple(math.nan if x is None else float(x) for x in data[name])

        count = tuple(int(n) for n in data["count"])
        return Statistics(count, floats("min"), floats("max"), floats("mean"), floats("m2"))


def merge(parts: Sequence[Statistics]) -> Statistics | None:
    """Statistics of the union (Chan, Golub and LeVeque's pairwise update), in the order given."""
    total: Statistics | None = None
    for part in parts:
        total = part if total is None else _merge_two(total, part)
    return total


def _merge_two(a: Statistics, b: Statistics) -> Statistics:
    count, low, high, mean, m2 = [], [], [], [], []
    for i in range(a.num_channels):
        n, m = a.count[i], b.count[i]
        if not n or not m:
            kept = a if n else b
            count.append(kept.count[i])
            low.append(kept.min[i])
            high.append(kept.max[i])
            mean.append(kept.mean[i])
            m2.append(kept.m2[i])
            continue
        delta = b.mean[i] - a.mean[i]
        count.append(n + m)
        low.append(min(a.min[i], b.min[i]))
        high.append(max(a.max[i], b.max[i]))
        mean.append(a.mean[i] + delta * m / (n + m))
        m2.append(a.m2[i] + b.m2[i] + delta * delta * n * m / (n + m))
    return Statistics(tuple(count), tuple(low), tuple(high), tuple(mean), tuple(m2))


def channel_axis(field: Field | FieldInfo) -> int | None:
    """The axis of a sample (of a ragged field: of an item) that separates channels: the layout's c, the one named
    "channel", an image's last, and the only one of items."""
    if field.layout:
        return field.layout.index("c") if "c" in field.layout else None
    if "channel" in field.axes and len(field.axes) == len(field.shape) + field.ragged:
        return field.axes.index("channel") - field.ragged
    if field.kind == "ragged":
        return 0 if len(field.shape) == 1 else None
    spatial = {"image": 2, "volume": 3}.get(field.kind)
    return len(field.shape) - 1 if spatial is not None and len(field.shape) > spatial else None


class Accumulator:
    """Collects the statistics of one field over blocks of rows.

    Works with one running number per value of a sample, which the processor does many of at once, and folds them
    into channels at the end. Sums are taken of deviations from the first block's mean, so that a large mean does not
    swallow a small spread.
    """

    def __init__(self, shape: tuple[int, ...], axis: int | None) -> None:
        self._shape = shape
        self._axis = axis
        size = int(np.prod(shape, dtype=np.int64))
        self._shift: np.ndarray[Any, Any] | None = None
        self._count = np.zeros(size, dtype=np.int64)
        self._sum = np.zeros(size)
        self._squares = np.zeros(size)
        self._min = np.full(size, np.inf)
        self._max = np.full(size, -np.inf)
        self._narrow_shift: np.ndarray[Any, Any] | None = None
        self._memory = np.empty(
            (0, size), dtype=np.float32
        )  # fresh memory costs more than the arithmetic in it

    def add(self, block: np.ndarray[Any, Any]) -> None:
        """Add a block (m, *shape) of real numbers."""
        if not block.size:
            return
        flat = block.reshape(len(block), -1)
        step = max(1, min(_MAX_ROWS, _CACHED_BYTES // (flat.dtype.itemsize * flat.shape[1])))
        for lo in range(0, len(flat), step):
            self._add_some(flat[lo : lo + step])

    def _add_some(self, flat: np.ndarray[Any, Any]) -> None:
        low, high = flat.min(axis=0), flat.max(axis=0)
        finite: np.ndarray[Any, Any] | None = None
        lowest, highest = float(low.min()), float(high.max())
        if math.isfinite(lowest) and math.isfinite(highest):
            self._count += len(flat)
        else:
            finite = np.isfinite(flat)
            low = np.where(finite, flat, np.inf).min(axis=0)
            high = np.where(finite, flat, -np.inf).max(axis=0)
            self._count += finite.sum(axis=0)
        np.minimum(self._min, low, out=self._min)
        np.maximum(self._max, high, out=self._max)
        if self._shift is None:
            self._shift = self._first_mean(flat, finite)
        deviations = self._deviations(flat, finite, lowest, highest)
        self._sum += deviations.sum(axis=0)
        self._squares += np.einsum("ij,ij->j", deviations, deviations)

    def _deviations(
        self, flat: np.ndarray[Any, Any], finite: np.ndarray[Any, Any] | None, lowest: float, highest: float
    ) -> np.ndarray[Any, Any]:
        """Differences from the shift, in float32 if that loses nothing that the values have, else in float64."""
        assert self._shift is not None
        if finite is None and flat.dtype == np.float32 and len(flat) <= _MAX_ROWS:
            if self._narrow_shift is None:
                self._narrow_shift = self._shift.astype(np.float32)
                self._shift = self._narrow_shift.astype(np.float64)
            reach = max(abs(lowest), abs(highest))
            if reach == 0 or 1e-12 < reach < 1e15:  # the squares neither overflow nor vanish
                if len(self._memory) < len(flat):
                    self._memory = np.empty_like(flat)
                return np.asarray(np.subtract(flat, self._narrow_shift, out=self._memory[: len(flat)]))
        wide = flat.astype(np.float64)
        wide -= self._shift
        if finite is not None:
            wide[~finite] = 0.0
        return wide

    def _fold(self, values: np.ndarray[Any, Any], how: np.ufunc) -> np.ndarray[Any, Any]:
        """Reduce one number per value of a sample to one per channel."""
        if self._axis is None:
            return np.asarray(how.reduce(values)).reshape(1)
        moved = np.moveaxis(values.reshape(self._shape), self._axis, -1)
        return np.asarray(how.reduce(moved.reshape(-1, moved.shape[-1]), axis=0))

    def _first_mean(
        self, flat: np.ndarray[Any, Any], finite: np.ndarray[Any, Any] | None
    ) -> np.ndarray[Any, Any]:
        """The mean of each channel, once per value of a sample."""
        wide = flat.astype(np.float64)
        known = wide if finite is None else np.where(finite, wide, 0.0)
        mean = self._fold(known.sum(axis=0), np.add) / np.maximum(self._fold(self._count, np.add), 1)
        if self._axis is None:
            return np.full(wide.shape[1], mean[0])
        spread = [1] * len(self._shape)
        spread[self._axis] = -1
        return np.broadcast_to(mean.reshape(spread), self._shape).reshape(-1).copy()

    def result(self) -> Statistics:
        if self._count.size:
            counts, total = self._fold(self._count, np.add), self._fold(self._sum, np.add)
            squares = self._fold(self._squares, np.add)
            low, high = self._fold(self._min, np.minimum), self._fold(self._max, np.maximum)
        else:  # samples without values
            counts = np.zeros(1, dtype=np.int64)
            total = squares = low = high = np.zeros(1)
        shift = 0.0 if self._shift is None or not self._shift.size else self._fold(self._shift, np.maximum)
        n = np.maximum(counts, 1)
        known = counts > 0
        return Statistics(
            tuple(counts.tolist()),
            tuple(np.where(known, low, np.nan).tolist()),
            tuple(np.where(known, high, np.nan).tolist()),
            tuple(np.where(known, shift + total / n, np.nan).tolist()),
            tuple(np.maximum(squares - total * total / n, 0.0).tolist()),
        )
