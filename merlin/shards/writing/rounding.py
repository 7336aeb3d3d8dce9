"""Round floats to fewer bits of mantissa, so that they compress well; the greatest error is known beforehand."""

from __future__ import annotations

import numpy as np

from merlin.base.kinds import MANTISSA_BITS
from merlin.shards.format.segments import Array

_WORK_BYTES = 1 << 20


def round_mantissa(values: Array, keep_bits: int) -> Array:
    """`values` (any shape, float16, float32 or float64) rounded to the nearest number with `keep_bits` explicit bits
    of mantissa, half to even; the sign of NaN, infinities and zeros stay.

    The error of a normal number is at most 2**-(keep_bits + 1) of it. What would round to infinity is rounded
    towards zero. The result is an array of its own, C-contiguous.
    """
    drop = MANTISSA_BITS[values.dtype.name] - keep_bits
    out = np.array(values, order="C")
    if drop <= 0:
        return out
    flat = out.reshape(-1)
    step = _WORK_BYTES // flat.itemsize
    for lo in range(0, len(flat), step):
        _round(flat[lo : lo + step], drop)
    return out


def _round(block: Array, drop: int) -> None:
    """Round in place.

    Add half of what is dropped, less one where the last bit that is kept is 0, and clear the rest.
    """
    unit = np.dtype(f"u{block.itemsize}").type
    bits = block.view(unit)
    kept = bits & ~unit((1 << drop) - 1)
    finite = np.isfinite(block)
    rounded = bits + (unit((1 << (drop - 1)) - 1) + ((bits >> unit(drop)) & unit(1)))
    rounded &= ~unit((1 << drop) - 1)
    overflows = ~np.isfinite(rounded.view(block.dtype))
    rounded[overflows] = kept[overflows]
    bits[finite] = rounded[finite]
