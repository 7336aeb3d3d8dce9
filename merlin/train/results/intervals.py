"""Central intervals from the spread of an ensemble: how wide they are, how wide they have to be, and what they hold.

M members predict a value, and s is the standard deviation of their predictions, with M - 1 in its denominator. The
central interval of a level reaches scale · t · s to both sides of their mean, t being the quantile of Student's
distribution with M - 1 degrees of freedom, for s is known from M predictions alone: with a few members it is often much
too small by chance, and intervals of a normal distribution would be too narrow in their far parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from merlin.errors import UsageError
from merlin.shards.format.segments import Array

LEVELS = tuple(percent / 100 for percent in range(5, 100, 5))  # of the intervals that are measured
SHOWN = (0.5, 0.8, 0.9, 0.95)  # those that are shown to people
_ANGLES = 100_001  # places at which the distribution is integrated
_HALVINGS = 60


@lru_cache(maxsize=256)
def reach(level: float, num_members: int) -> float:
    """How many standard deviations the central interval of a level, such as 0.9, reaches to each side of the mean.

    With x = √(M - 1) · tan(angle), the density of Student's distribution is a power of the angle's cosine. Raises
    UsageError for a level that is not between 0 and 1.
    """
    if not 0.0 < level < 1.0:
        raise UsageError(f"the level of an interval is between 0 and 1, not {level:g}")
    freedom = num_members - 1
    angles = np.linspace(0.0, math.pi / 2, _ANGLES)
    density = np.cos(angles) ** (freedom - 1)
    held = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(freedom) * math.tan(float(np.interp(level, held / held[-1], angles)))


def fitted_scale(ratios: Array, num_members: int) -> float:
    """The factor of all standard deviations that makes the true values most likely: maximum likelihood.

    `ratios` (n,) are the distances of true values from the mean, each divided by its standard deviation; they may be
    infinite. The derivative of the likelihood is a falling function of the factor, whose zero is found by halving. A
    single ratio counts for `num_members` usual ones at most, so that some wild ones do not decide. Without any the
    factor is 1.
    """
    known = ratios[(ratios > 0) & np.isfinite(ratios)]
    if not known.size:
        return 1.0
    low, high = math.log(known.min()), math.log(known.max())
    freedom = num_members - 1
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        with np.errstate(divide="ignore"):
            weights = num_members / (1 + freedom * (math.exp(middle) / ratios) ** 2)
        low, high = (middle, high) if weights.mean() > 1 else (low, middle)
    return math.exp((low + high) / 2)


def held_shares(ratios: Array, scale: float, levels: Sequence[float], num_members: int) -> tuple[float, ...]:
    """The share of true values in the central interval of each level; NaN without any true value."""
    if not ratios.size:
        return (math.nan,) * len(levels)
    ascending = np.sort(ratios)
    ends = [scale * reach(level, num_members) for level in levels]
    return tuple(float(num / ratios.size) for num in np.searchsorted(ascending, ends, side="right"))
