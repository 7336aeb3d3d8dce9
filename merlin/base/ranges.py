"""Half-open ranges [lo, hi) of integers: tasks, rows, shards, samples. Light to import: NumPy comes with arrays."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Range = tuple[int, int]
Ranges = tuple[Range, ...]


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return the same numbers as sorted ranges with gaps in between."""
    out: list[Range] = []
    for a, b in sorted(ranges):
        if out and out[-1][1] >= a:
            out[-1] = (out[-1][0], max(b, out[-1][1]))
        else:
            out.append((a, b))
    return out


def within(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """Return the numbers of the first ranges that are in the others, too."""
    ranges = merged(ranges)
    return without(ranges, without(ranges, others))


def without(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """Return the numbers of the first ranges that are in none of the others."""
    out: list[Range] = []
    cuts = merged(others)
    at = 0  # no cut before it reaches what is left
    for lo, hi in merged(ranges):
        while at < len(cuts) and cuts[at][0] < hi:
            a, b = cuts[at]
            out += [(lo, a)] if a > lo else []
            lo = max(lo, b)
            if b > hi:
                break  # it reaches into the next range, too
            at += 1
        out += [(lo, hi)] if lo < hi else []
    return out


def touching(ranges: Sequence[Range], lo: int, hi: int) -> Sequence[Range]:
    """Return those of some sorted ranges, none of which overlap, that have numbers of [lo, hi); not cut to it."""
    first = bisect_right(ranges, lo, key=itemgetter(1))
    return ranges[first : bisect_left(ranges, hi, lo=first, key=itemgetter(0))]


def total(ranges: Iterable[Range]) -> int:
    """Return how many integers are in ranges that do not overlap."""
    return sum(b - a for a, b in ranges)


def stretches(numbers: Sequence[int]) -> Iterator[Range]:
    """Yield the maximal ranges of an increasing sequence; for an array, see `to_ranges`."""
    first = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            yield numbers[first], numbers[end - 1] + 1
            first = end


def to_ranges(numbers: np.ndarray[Any, Any]) -> Ranges:
    """Return sorted unique integers (n,) as maximal ranges."""
    import numpy as np

    if not len(numbers):
        return ()
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    starts = numbers[np.concatenate(([0], cuts))]
    ends = numbers[np.concatenate((cuts - 1, [len(numbers) - 1]))] + 1
    return tuple((int(a), int(b)) for a, b in zip(starts, ends, strict=True))


def numbers(ranges: Iterable[Range]) -> np.ndarray[Any, Any]:
    """Return the integers of some ranges as an array (n,), ascending, each once."""
    import numpy as np

    return distinct(np.concatenate([np.zeros(0, np.int64), *(np.arange(a, b) for a, b in ranges)]))


def distinct(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the values of an array (n,), ascending, each once.

    So does `np.unique`, which loads numpy.ma at its first call: a fortieth of a second in every worker process.
    """
    import numpy as np

    ordered = np.sort(values)
    is_first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


def mark(mask: np.ndarray[Any, Any], ranges: Iterable[Range], first: int, value: bool = True) -> None:
    """Set the entries of a mask that ranges cover; its first entry stands for number `first`."""
    for lo, hi in ranges:
        mask[max(lo - first, 0) : max(hi - first, 0)] = value


def format_ranges(ranges: Sequence[Range], limit: int = 10) -> str:
    """Return "3, 7-9, 12" for people; ends are inclusive."""
    words = [str(a) if b - a == 1 else f"{a}-{b - 1}" for a, b in ranges[:limit]]
    more = len(ranges) - limit
    return ", ".join(words) + (f" and {more} more ranges" if more > 0 else "")
