"""Which values of the inputs a kind of failure goes with, and how sure that is.

The values of an input are cut into at most `NUM_BINS` bins with equally many samples each, whatever became of them.
For the run of neighbouring bins in which failures stand out most, Fisher's exact test says how often chance alone
brings so many together. It is corrected for all the runs of bins and all the inputs that were looked at (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

NUM_BINS = 16
SIGNIFICANT = 0.01
FEWEST = 3  # failures, and samples that ended ok

Floats = NDArray[np.float64]


class InputRange(Struct, frozen=True, kw_only=True):
    """Values of one input with which tasks fail more often than chance explains."""

    input: str
    low: float  # the least and the greatest value in the range, both in it
    high: float
    rate_inside: float  # the share of the tasks with such values that failed in this way
    rate_outside: float
    p: float  # the probability that chance explains it, corrected for everything that was looked at


class Population(Struct, frozen=True, kw_only=True):
    """Values of the inputs of tasks that failed in one way, and of tasks that ended ok; either may be a part of all."""

    failed: Mapping[str, Floats]  # by input
    ok: Mapping[str, Floats]
    num_failed: int  # of all tasks
    num_ok: int


def suspicious_ranges(population: Population) -> list[InputRange]:
    """The range of each input that goes with the failures, if one does; the surest first."""
    names = [name for name in population.failed if name in population.ok]
    tested = {name: _Bins.of(population.failed[name], population.ok[name]) for name in names}
    bins = {name: found for name, found in tested.items() if found is not None}
    found = []
    for name, each in bins.items():
        lo, hi = each.most_striking()
        p = min(1.0, each.p_of(lo, hi) * each.num_runs * len(bins))
        if p < SIGNIFICANT:
            found.append(_range_of(name, each, lo, hi, p, population))
    return sorted(found, key=lambda each: each.p)


def _range_of(name: str, bins: _Bins, lo: int, hi: int, p: float, population: Population) -> InputRange:
    failed = float(bins.failed[lo:hi].sum() / bins.failed.sum()) * population.num_failed
    ok = float(bins.ok[lo:hi].sum() / bins.ok.sum()) * population.num_ok
    outside_failed, outside_ok = population.num_failed - failed, population.num_ok - ok
    outside = outside_failed + outside_ok
    return InputRange(
        input=name,
        low=float(bins.lows[lo]),
        high=float(bins.highs[hi - 1]),
        rate_inside=failed / (failed + ok),
        rate_outside=outside_failed / outside if outside else 0.0,
        p=p,
    )


class _Bins(Struct, frozen=True):
    """The values of one input in bins, k of them."""

    failed: Floats  # (k,) how many
    ok: Floats
    lows: Floats  # (k,) the least value in each
    highs: Floats

    @classmethod
    def of(cls, failed: Floats, ok: Floats) -> _Bins | None:
        """None if there are too few values, or all are the same."""
        failed, ok = failed[np.isfinite(failed)], ok[np.isfinite(ok)]
        if len(failed) < FEWEST or len(ok) < FEWEST:
            return None
        values = np.sort(np.concatenate([failed, ok]))
        first = _first_of_bins(values)
        if len(first) < 2:
            return None
        lows = values[first]
        counts = [
            np.bincount(np.searchsorted(lows, v, "right") - 1, minlength=len(first)) for v in (failed, ok)
        ]
        return cls(
            counts[0].astype(np.float64),
            counts[1].astype(np.float64),
            lows,
            values[np.append(first[1:], len(values)) - 1],
        )

    @property
    def num_runs(self) -> int:
        """The number of runs of neighbouring bins, without the run of all bins."""
        k = len(self.lows)
        return k * (k + 1) // 2 - 1

    def most_striking(self) -> tuple[int, int]:
        """The run [lo, hi) of bins with the most failures, in standard deviations above what is expected."""
        k = len(self.lows)
        lo, hi = np.triu_indices(k + 1, 1)
        is_part = hi - lo < k
        lo, hi = lo[is_part], hi[is_part]
        failed = np.append(0.0, np.cumsum(self.failed))
        both = np.append(0.0, np.cumsum(self.failed + self.ok))
        inside, num, total, num_failed = failed[hi] - failed[lo], both[hi] - both[lo], both[-1], failed[-1]
        expected = num * num_failed / total
        variance = expected * (1 - num_failed / total) * (total - num) / (total - 1)
        best = int(np.argmax((inside - expected) / np.sqrt(variance)))
        return int(lo[best]), int(hi[best])

    def p_of(self, lo: int, hi: int) -> float:
        """Fisher's exact test, one-sided: the probability of so many failures or more in this run by chance."""
        failed, ok = int(self.failed.sum()), int(self.ok.sum())
        inside = int(self.failed[lo:hi].sum())
        return at_least(inside, drawn=inside + int(self.ok[lo:hi].sum()), marked=failed, total=failed + ok)


def _first_of_bins(values: Floats) -> NDArray[np.int64]:
    """Where bins begin in sorted values; equal values are in the same bin."""
    starts = np.append(0, np.flatnonzero(values[1:] != values[:-1]) + 1)  # the first of equal values
    if len(starts) <= NUM_BINS:
        return starts.astype(np.int64)
    wanted = np.linspace(0, len(values), NUM_BINS, endpoint=False)
    return np.unique(starts[np.searchsorted(starts, wanted, "right") - 1]).astype(np.int64)


def at_least(least: int, *, drawn: int, marked: int, total: int) -> float:
    """The probability that `drawn` of `total` balls, of which some are marked, have `least` marked ones or more."""
    most = min(drawn, marked)
    first = max(least, 0, drawn + marked - total)
    if first > most:
        return 0.0
    log_first = (
        _log_choose(marked, first) + _log_choose(total - marked, drawn - first) - _log_choose(total, drawn)
    )
    k = np.arange(first, most, dtype=np.float64)
    steps = np.log((marked - k) * (drawn - k)) - np.log((k + 1) * (total - marked - drawn + k + 1))
    logs = log_first + np.append(0.0, np.cumsum(steps))
    largest = float(logs.max())
    return min(1.0, math.exp(largest) * float(np.exp(logs - largest).sum()))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def numbers(values: Any) -> Floats | None:
    """Values as numbers; None if one of them is none."""
    try:
        return np.asarray(values, np.float64)
    except (ValueError, TypeError):
        return None
