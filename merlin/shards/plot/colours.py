"""How the values of pictures become colours."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from merlin.shards.format.segments import Array

INTENSITY, SIGNED, OTHER = "inferno", "RdBu_r", "viridis"  # matplotlib's; all can be read by the colour-blind
_DECADES = 4  # of a logarithmic scale
_ENOUGH = 200_000  # so many values are enough to choose a scale


class Colours(Struct, frozen=True):
    """A colour map, and the values at its ends."""

    name: str
    lo: float
    hi: float
    scale: str = ""  # "" | "√ scale" | "log scale"

    def norm(self) -> Any:
        from matplotlib.colors import LogNorm, Normalize, PowerNorm

        if self.scale == "log scale":
            return LogNorm(self.lo, self.hi)
        return PowerNorm(0.5, self.lo, self.hi) if self.scale else Normalize(self.lo, self.hi)

    def within(self, values: Array) -> Array:
        """Values clipped to those that the norm can take; NaN stays NaN, and is drawn transparent."""
        return np.clip(values, self.lo, self.hi)


def mark_colours() -> Any:
    """A colour map for small marks, without the ends that vanish on dark or on light paper."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    return ListedColormap(matplotlib.colormaps[OTHER](np.linspace(0.15, 0.93, 256)))


def choose_colours(stacks: list[Array]) -> Colours:
    """One scale for all pictures (n, h, w) of `stacks`: intensities from black, signed values about white.

    Intensities are shown by their square root where most of a picture is dark, and by their logarithm where most
    pictures would be.
    """
    values = np.concatenate([stack[:, :: _stride(stack)].ravel() for stack in stacks])
    values = values[np.isfinite(values)]
    if not values.size:
        return Colours(OTHER, 0.0, 1.0)
    lo, middle, hi = (float(q) for q in np.quantile(values, [0.001, 0.5, 0.999]))
    if lo == hi:
        lo, hi = float(values.min()), float(values.max())
    if lo < 0 < hi and -lo > 0.1 * hi:
        reach = max(-lo, hi)
        return Colours(SIGNED, -reach, reach)
    if hi > 0 and lo <= 0.05 * hi:
        brightest = np.concatenate([_brightest(stack) for stack in stacks])
        if np.median(brightest) < 0.05 * hi and np.median(brightest) > 0:
            return Colours(INTENSITY, hi * 10.0**-_DECADES, hi, "log scale")
        return Colours(INTENSITY, 0.0, hi, "√ scale" if middle < 0.1 * hi else "")
    return Colours(OTHER, lo, hi if hi > lo else lo + (abs(lo) or 1.0) * 0.1)


def _stride(stack: Array) -> int:
    return int(max(1, min(stack.shape[1], stack.size // _ENOUGH)))


def _brightest(stack: Array) -> Array:
    """The greatest value of each picture."""
    flat = stack.reshape(len(stack), -1)
    return np.asarray(np.where(np.isfinite(flat), flat, 0.0).max(axis=1))
