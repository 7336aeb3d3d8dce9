"""The arithmetic of normalisation: y = (f(x) - centre) * scale, f the identity or log10(x + offset)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from merlin.shards.format.segments import Array

_BLOCK_BYTES = 1 << 18  # worked on at once, so that every pass but the first finds it in a core's cache
_LN_10 = math.log(10.0)


class Vectors(NamedTuple):
    """The numbers of a scaling as arrays or tensors that are broadcast to an array (…, *shape) of the same kind."""

    log: Any  # where there is a logarithm; None: nowhere
    centre: Any
    scale: Any
    offset: Any
    floor: Any

    def forward(self, x: Any, xp: Any) -> Any:
        """Normalise x with the functions of the module xp, NumPy or torch; differentiable."""
        if self.log is not None:
            raised = xp.maximum(xp.where(self.log, x + self.offset, self.floor), self.floor)
            x = xp.where(self.log, xp.log10(raised), x)
        return (x - self.centre) * self.scale

    def inverse(self, y: Any, xp: Any) -> Any:
        """The values that were normalised into y; differentiable."""
        x = y / self.scale + self.centre
        if self.log is None:
            return x
        return xp.where(self.log, 10.0 ** xp.where(self.log, x, self.centre) - self.offset, x)


class Scaling(Struct, frozen=True, dict=True):
    """The normalisation of one array (n, *shape).

    One number each for everything, or one per index along `axis` of a sample, counted from the end: -1 for the
    columns of a matrix or the channels of an image as hwc, -3 for those of an image as chw.
    """

    centre: tuple[float, ...]
    scale: tuple[float, ...]
    offset: tuple[float | None, ...]  # None: no logarithm
    floor: tuple[float, ...]  # the least x + offset of a logarithm; what is smaller is raised to it
    axis: int | None = None

    def __post_init__(self) -> None:
        if len({len(numbers) for numbers in self._numbers}) != 1:
            raise ValueError("vectors of a scaling differ in length")

    @staticmethod
    def stack(columns: Sequence[Scaling | None], widths: Sequence[int]) -> Scaling:
        """One scaling for a matrix (n, sum of widths) of numbers and series; None changes no values."""
        parts = [
            [numbers * (width if len(numbers) == 1 else 1) for numbers in (column or IDENTITY)._numbers]
            for column, width in zip(columns, widths, strict=True)
        ]
        centre, scale, offset, floor = (
            tuple(chain.from_iterable(part[i] for part in parts)) for i in range(4)
        )
        return Scaling(centre, scale, offset, floor, -1)

    def moved(self, axis: int) -> Scaling:
        """The same for an array whose channels lie along another axis."""
        return self if self.axis is None else replace(self, axis=axis)

    @property
    def _numbers(self) -> tuple[tuple[Any, ...], ...]:
        return self.centre, self.scale, self.offset, self.floor

    def arrays(self, axis: int | None) -> Vectors:
        """The numbers as float64 arrays, for channels that lie along `axis`."""

        def shaped(values: Any) -> Array:
            vector = np.asarray(values)
            return vector.reshape(()) if axis is None else vector.reshape(-1, *[1] * (-1 - axis))

        log = np.array([offset is not None for offset in self.offset], bool)
        offset = [offset or 0.0 for offset in self.offset]
        numbers = (self.centre, self.scale, offset, np.where(log, self.floor, 1.0))
        return Vectors(shaped(log) if log.any() else None, *map(shaped, numbers))

    @cached_property
    def _kept(self) -> dict[Any, Any]:
        """The vectors that were made for arrays and tensors of one kind."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def apply(self, x: Array, out: Array) -> None:
        """Normalise real x (n, *shape) into floating `out` of that shape, which may be x itself.

        Computed in the wider of the two types, in float32 at least.
        """
        rows = max(1, _BLOCK_BYTES // max(1, x[:1].nbytes))
        kind = np.result_type(x.dtype, out.dtype, np.float32)
        for lo in range(0, len(x), rows):
            block, target = x[lo : lo + rows], out[lo : lo + rows]
            work = target if target.dtype == kind else np.empty(block.shape, kind)
            self._apply_block(block, work)
            if work is not target:
                target[...] = work

    def _apply_block(self, x: Array, work: Array) -> None:
        log, centre, scale, offset, floor = self._as_large_as(x.shape[1:], work.dtype)
        if log is not None and not log.all():
            work[...] = self.forward(x.astype(work.dtype, copy=False))
            return
        if log is not None:
            np.add(x, offset, out=work)
            np.maximum(work, floor, out=work)
            x = np.log(work, out=work)  # it has vector instructions; centre and scale suit this logarithm
        np.subtract(x, centre, out=work)
        np.multiply(work, scale, out=work)

    def _as_large_as(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Vectors:
        """The numbers for every element of a sample.

        If there is a logarithm everywhere, centre and scale suit the natural one.
        """
        found = self._kept.get((shape, dtype))
        if found is None:
            log, centre, scale, offset, floor = self.arrays(self.axis)
            unit = 1.0 if log is None else _LN_10
            wide = (centre * unit, scale / unit, offset, floor)
            found = Vectors(
                log, *(np.ascontiguousarray(np.broadcast_to(v.astype(dtype), shape)) for v in wide)
            )
            self._kept[shape, dtype] = found
        return found

    def forward(self, x: Any) -> Any:
        """Normalise a NumPy array or a torch tensor of floats (…, *shape); differentiable."""
        vectors, xp = self._like(x)
        return vectors.forward(x, xp)

    def inverse(self, y: Any) -> Any:
        """The values that were normalised into y, an array or a tensor as for `forward`; differentiable."""
        vectors, xp = self._like(y)
        return vectors.inverse(y, xp)

    def _like(self, x: Any) -> tuple[Vectors, Any]:
        """The numbers, of x's kind, and the module whose functions take them."""
        if isinstance(x, np.ndarray):
            kind = np.result_type(x.dtype, np.float32)
            log, *numbers = self.arrays(self.axis)
            return Vectors(log, *(v.astype(kind) for v in numbers)), np
        import torch

        dtype = torch.promote_types(x.dtype, torch.float32)
        found = self._kept.get((x.device, dtype))
        if found is None:
            log, *numbers = self.arrays(self.axis)
            mask = None if log is None else torch.from_numpy(log).to(x.device)
            found = Vectors(mask, *(torch.from_numpy(v).to(x.device, dtype) for v in numbers))
            self._kept[x.device, dtype] = found
        return found, torch


IDENTITY = Scaling((0.0,), (1.0,), (None,), (0.0,))
