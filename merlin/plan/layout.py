"""Where the directory of a sample is: closed form from its id, no tree object.

The names are the digits of the id in base ``level_max_dirs``, one directory per digit, each padded with zeros
to the number of digits of ``level_max_dirs`` itself. The depth is the smallest that holds all samples, so a
study of one sample has no sample directory at all: it runs in the directory of its step instance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

FINISHED = "MERLIN_FINISHED"  # the empty file in the directory of a task that has ended ok
TRY = ".try"  # and a number: the directory, in that of a task, of what an earlier try has left
LOGS = "logs"  # directory in that of a function's step instance: what it printed, per worker


@dataclass(frozen=True, slots=True)
class SampleLayout:
    """The directories of `num` samples with at most `level_max_dirs` entries in each.

    >>> SampleLayout(50).path(26), SampleLayout(50).glob
    ('01/01', '*/*')
    """

    num: int
    level_max_dirs: int = 25
    depth: int = field(init=False)
    _width: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.num < 0 or self.level_max_dirs < 1 or (self.level_max_dirs == 1 and self.num > 1):
            raise ValueError(f"{self.num} samples do not fit with level_max_dirs {self.level_max_dirs}")
        depth, room = 0, 1
        while room < self.num:
            depth, room = depth + 1, room * self.level_max_dirs
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "_width", len(str(self.level_max_dirs)))

    def path(self, sample: int) -> str:
        """Relative directory of a sample, "00/01"; "" when the depth is 0."""
        if not 0 <= sample < self.num:
            raise IndexError(f"sample {sample} is not in [0, {self.num})")
        names = []
        for _ in range(self.depth):
            sample, digit = divmod(sample, self.level_max_dirs)
            names.append(str(digit).zfill(self._width))
        return "/".join(reversed(names))

    def iter_paths(self, lo: int = 0, hi: int | None = None) -> Iterator[str]:
        """The paths of samples [lo, hi), one at a time; much faster than calling `path` for each."""
        hi = self.num if hi is None else hi
        if not 0 <= lo <= hi <= self.num:
            raise IndexError(f"[{lo}, {hi}) is not inside [0, {self.num})")
        if self.depth == 0:
            yield from [""] * (hi - lo)
            return
        base, width = self.level_max_dirs, self._width
        at = lo
        while at < hi:
            parent, digit = divmod(at, base)
            end = min(hi, (parent + 1) * base)
            prefix = self.path(at)[:-width]
            for last in range(digit, digit + end - at):
                yield prefix + str(last).zfill(width)
            at = end

    def paths_all(self) -> str:
        """Value of $(MERLIN_PATHS_ALL): the paths of all samples with a blank between; long for many."""
        return " ".join(self.iter_paths())

    @property
    def glob(self) -> str:
        """Pattern that matches every sample's directory: "*/*"."""
        return "/".join(["*"] * self.depth)

    @property
    def num_directories(self) -> int:
        """Directories of all levels below one step instance."""
        total, room = 0, 1
        for _ in range(self.depth):
            total += -(-self.num // room)
            room *= self.level_max_dirs
        return total


def is_set_aside(path: str) -> bool:
    """True if a path, relative to a task's directory, lies in what an earlier try of some task has left."""
    return TRY in path and any(
        part.startswith(TRY) and part[len(TRY) :].isdigit() for part in path.split("/")
    )
