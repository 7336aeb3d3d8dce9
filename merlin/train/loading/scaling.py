"""The arithmetic of normalisation: y = (f(x) - centre) * scale, f the identity or log10(x + offset)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_BLOCK_BYTES = 1 << 18  # worked on at once, so that every pass but the first finds it in a core's cache
_LN_10 = math.log(10.0)


@dataclass(frozen=True)
class Scaling:
    """The normalisation of one array (n, *shape).

    One number each for everything, or one per index along `axis` of a sample, counted from the end: -1 for the
    columns of a matrix or the channels of an image as hwc, -3 for those of an image as chw.
    """

    centre: tuple[float, ...]
    scale: tuple[float, ...]
    offset: tuple[float | None, ...]  # None: no logarithm
    floor: tuple[float, ...]  # the least x + offset of a logarithm; what is smaller is raised to it
    axis: int | None = None

    @staticmethod
    def stack(columns: Sequence[Scaling | None], widths: Sequence[int] = ()) -> Scaling:
        """One for the matrix (n, sum of widths) of numbers and series; None leaves them as they are."""
        plain = Scaling((0.0,), (1.0,), (None,), (0.0,))
        wide = zip(columns, widths or (1,) * len(columns), strict=True)
        parts = [(plain if column is None else column)._widened(width) for column, width in wide]
        centre, scale = (tuple(v for p in parts for v in getattr(p, name)) for name in ("centre", "scale"))
        offset = tuple(v for p in parts for v in p.offset)
        return Scaling(centre, scale, offset, tuple(v for p in parts for v in p.floor), -1)

    def _widened(self, width: int) -> Scaling:
        """For `width` numbers: each its own, or all the same."""
        times = width if len(self.centre) == 1 else 1
        return Scaling(self.centre * times, self.scale * times, self.offset * times, self.floor * times, -1)

    @staticmethod
    def log10(offset: Sequence[float], floor: Sequence[float], axis: int | None) -> Scaling:
        """The logarithm alone."""
        return Scaling((0.0,) * len(offset), (1.0,) * len(offset), tuple(offset), tuple(floor), axis)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Scaling:
        vectors = {name: tuple(data[name]) for name in ("centre", "scale", "offset", "floor")}
        if len({len(vector) for vector in vectors.values()}) != 1:
            raise ValueError("vectors of a scaling differ in length")
        return Scaling(**vectors, axis=data["axis"])

    def moved(self, axis: int) -> Scaling:
        """The same for an array whose channels lie along another axis."""
        return self if self.axis is None else Scaling(self.centre, self.scale, self.offset, self.floor, axis)

    @cached_property
    def _is_log(self) -> Array:
        return np.array([offset is not None for offset in self.offset])

    @cached_property
    def _kind(self) -> str:
        return "log" if self._is_log.all() else "mixed" if self._is_log.any() else "linear"

    @cached_property
    def _expanded(self) -> dict[Any, Any]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

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
        if self._kind == "mixed":
            work[...] = self.forward(x.astype(work.dtype, copy=False))
            return
        centre, scale, offset, floor = self._vectors(x.shape[1:], work.dtype)
        if self._kind == "log":
            np.add(x, offset, out=work)
            np.maximum(work, floor, out=work)
            x = np.log(work, out=work)  # there are vector instructions for it; centre and scale are for it
        np.subtract(x, centre, out=work)
        np.multiply(work, scale, out=work)

    def _vectors(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, ...]:
        """Centre, scale (both for the natural logarithm, if it is one), offset and floor, as large as a sample."""
        found = self._expanded.get((shape, dtype))
        if found is None:
            unit = _LN_10 if self._kind == "log" else 1.0
            centre, scale, offset, floor = (self._shaped(v) for v in self._numbers())
            wide = (centre * unit, scale / unit, offset, floor)
            found = tuple(np.ascontiguousarray(np.broadcast_to(v.astype(dtype), shape)) for v in wide)
            self._expanded[shape, dtype] = found
        return found

    def forward(self, x: Any) -> Any:
        """Normalise a NumPy array or a torch tensor of floats (…, *shape); differentiable."""
        (centre, scale, offset, floor), log, xp = self._like(x)
        if self._kind != "linear":
            x = xp.where(log, xp.log10(xp.maximum(xp.where(log, x + offset, floor), floor)), x)
        return (x - centre) * scale

    def inverse(self, y: Any) -> Any:
        """What was normalised into y, a NumPy array or a torch tensor of floats (…, *shape); differentiable."""
        (centre, scale, offset, _), log, xp = self._like(y)
        x = y / scale + centre
        if self._kind == "linear":
            return x
        return xp.where(log, 10.0 ** xp.where(log, x, centre) - offset, x)

    def _numbers(self) -> tuple[tuple[float, ...], ...]:
        offsets = tuple(0.0 if offset is None else offset for offset in self.offset)
        floors = tuple(1.0 if o is None else f for o, f in zip(self.offset, self.floor, strict=True))
        return self.centre, self.scale, offsets, floors

    def _shaped(self, values: Any) -> Array:
        """To be broadcast to an array (…, *shape)."""
        vector = np.asarray(values)
        return vector.reshape(()) if self.axis is None else vector.reshape(-1, *[1] * (-1 - self.axis))

    def _like(self, x: Any) -> tuple[list[Any], Any, Any]:
        """The vectors and the mask of logarithms, of x's kind, and the module whose functions take them."""
        if isinstance(x, np.ndarray):
            kind = np.result_type(x.dtype, np.float32)
            return [self._shaped(v).astype(kind) for v in self._numbers()], self._shaped(self._is_log), np
        import torch

        dtype = torch.promote_types(x.dtype, torch.float32)
        found = self._expanded.get((x.device, dtype))
        if found is None:
            vectors = [torch.from_numpy(self._shaped(v)).to(x.device, dtype) for v in self._numbers()]
            found = vectors, torch.from_numpy(self._shaped(self._is_log)).to(x.device)
            self._expanded[x.device, dtype] = found
        return *found, torch
