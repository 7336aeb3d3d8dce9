"""Which sample is read when, and by whom: pure functions of seeds and positions, without a table of indices.

The order of an epoch is a pseudo-random permutation of ``range(size)`` that can be evaluated at any positions in
constant memory: a generalised Feistel network on the pairs ``(x mod a, x div a)`` with ``a * b >= size`` barely
(Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002), walking its cycles back into the range.
The round function is SplitMix64's. Only unsigned 64-bit arithmetic is used, so the order is the same on every
machine and with every version of NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from merlin.errors import UsageError
from merlin.shards.format.segments import Array
from merlin.shards.format.splits import GAMMA, MIX_1, MIX_2, mix64, unit_hash

_ROUNDS = 16  # 12 are measurably uneven over the 720 orders of 6 samples
_MAX_SIZE = 1 << 62
_POSITIONS_AT_ONCE = 16_384  # evaluating the order has a cost per call
_BITS_27, _BITS_30, _BITS_31, _BITS_32 = (np.uint64(bits) for bits in (27, 30, 31, 32))
# what a seed is used for enters every hash, so that equal seeds of two uses are unrelated
_EPOCH, _PARTITION, _TOURNAMENT = 0x45504F43, 0x50415254, 0x544F5552


def derive_seed(*parts: int) -> int:
    """A 64-bit seed that depends on every part and on their order."""
    state = np.zeros(1, dtype=np.uint64)
    for part in parts:
        state = mix64(state ^ np.array([part % 2**64], dtype=np.uint64))
    return int(state[0])


class Permutation:
    """A pseudo-random permutation of range(size), a pure function of `size` and `seed`."""

    def __init__(self, size: int, seed: int) -> None:
        if not 0 <= size <= _MAX_SIZE:
            raise ValueError(f"a permutation of {size} elements cannot be made")
        self.size = size
        self._low = np.uint64(max(1, math.isqrt(max(0, size - 1)) + 1))  # sizes of the two halves
        self._high = np.uint64(max(1, -(-size // int(self._low))))
        self._keys = list(mix64(np.arange(_ROUNDS, dtype=np.uint64) ^ np.uint64(derive_seed(seed))))

    def at(self, positions: Any) -> Array:
        """Elements at `positions` (integers in [0, size), any shape), as int64 of the same shape."""
        where = np.asarray(positions, dtype=np.int64)
        if where.size and (int(where.min()) < 0 or int(where.max()) >= self.size):
            raise IndexError(f"positions have to lie in [0, {self.size})")
        found = self._once(where.astype(np.uint64).reshape(-1))
        outside = np.flatnonzero(found >= self.size)
        while outside.size:
            found[outside] = self._once(found[outside])
            outside = outside[found[outside] >= self.size]
        return found.astype(np.int64).reshape(where.shape)

    def _once(self, x: Array) -> Array:
        high, low = np.divmod(x, self._low)
        for number in range(0, _ROUNDS, 2):
            low += _below(self._low, high ^ self._keys[number])
            np.minimum(low, low - self._low, out=low)  # modulo: a negative difference wraps to a huge number
            high += _below(self._high, low ^ self._keys[number + 1])
            np.minimum(high, high - self._high, out=high)
        high *= self._low
        high += low
        return high


def _below(bound: Any, x: Array) -> Array:
    """Turn x, in place, into its hash in [0, bound), bound <= 2**32; the mixing is that of `mix64`."""
    shifted = np.empty_like(x)
    x += GAMMA
    for shift, factor in ((_BITS_30, MIX_1), (_BITS_27, MIX_2)):
        np.right_shift(x, shift, out=shifted)
        x ^= shifted
        x *= factor
    np.right_shift(x, _BITS_31, out=shifted)
    x ^= shifted
    x >>= _BITS_32
    x *= bound
    x >>= _BITS_32
    return x


class EpochOrder:
    """The order of an epoch: a pure function of (size, seed, epoch), or ascending if not shuffled."""

    def __init__(self, size: int, seed: int, epoch: int, shuffle: bool = True) -> None:
        self.size = size
        self._permutation = Permutation(size, derive_seed(_EPOCH, seed, epoch)) if shuffle else None

    def at(self, positions: Any) -> Array:
        """Samples at these positions of the epoch, int64."""
        if self._permutation is None:
            return np.array(positions, dtype=np.int64)
        return self._permutation.at(positions)


class EpochStep(Struct, frozen=True):
    """One step of all ranks together; it takes positions [lo, hi) of the epoch."""

    lo: int
    hi: int
    first: int  # this rank's first position
    num: int  # this rank's positions; those from the epoch's size on are padding

    def num_valid(self, size: int) -> int:
        """How many of them, the first ones, are not padding."""
        return min(max(0, size - self.first), self.num)


class EpochSteps(Struct, frozen=True):
    """How the positions of an epoch are dealt to ranks, step by step.

    A step takes the next batch_size * world_size positions, whoever took those before; so an epoch that was
    begun by one number of ranks can be finished by another. Of the positions that remain for the last step, each
    rank gets an equal share (which can be none) unless they are dropped, or padded to whole batches.
    """

    size: int
    batch_size: int
    world_size: int = 1
    drop_last: bool = False
    pad_last: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.world_size < 1:
            raise UsageError(
                f"batch_size and world_size have to be at least 1, not {self.batch_size} and {self.world_size}"
            )
        if self.drop_last and self.pad_last:
            raise UsageError("the last batch is either dropped (drop_last) or padded (pad_last), not both")

    @property
    def whole(self) -> int:
        return self.batch_size * self.world_size

    def num_steps(self, consumed: int = 0) -> int:
        """Steps that remain after `consumed` positions."""
        left = max(0, self.size - consumed)
        return left // self.whole if self.drop_last else -(-left // self.whole)

    def step(self, consumed: int, rank: int) -> EpochStep | None:
        """The step that follows `consumed` positions, as seen by `rank`; None at the end of the epoch."""
        left = self.size - consumed
        if left <= 0 or (left < self.whole and self.drop_last):
            return None
        if left >= self.whole or self.pad_last:
            first = consumed + rank * self.batch_size
            return EpochStep(consumed, consumed + min(left, self.whole), first, self.batch_size)
        lo, hi = left * rank // self.world_size, left * (rank + 1) // self.world_size
        return EpochStep(consumed, self.size, consumed + lo, hi - lo)

    def steps(self, consumed: int, rank: int) -> Iterator[EpochStep]:
        """All steps that remain after `consumed` positions."""
        while (step := self.step(consumed, rank)) is not None:
            yield step
            consumed = step.hi


class Planned(Struct, frozen=True):
    """A batch to be read."""

    indices: Array  # samples (n,)
    num_valid: int  # the first ones, which are not padding
    consumed: int  # positions of the epoch that all ranks have taken after it


def plan_batches(order: EpochOrder, schedule: EpochSteps, consumed: int, rank: int) -> Iterator[Planned]:
    """The batches that `rank` reads for the rest of an epoch."""
    size, remaining = schedule.size, schedule.steps(consumed, rank)
    while steps := list(islice(remaining, max(1, _POSITIONS_AT_ONCE // schedule.batch_size))):
        samples = order.at(positions_of(steps, size))
        for step, end in zip(steps, accumulate(step.num for step in steps), strict=True):
            yield Planned(samples[end - step.num : end], step.num_valid(size), step.hi)


def positions_of(steps: Sequence[EpochStep], size: int) -> Array:
    """A rank's positions in these steps, one after another, padding wrapped around to the epoch's beginning."""
    first, num = np.array([(step.first, step.num) for step in steps], dtype=np.int64).T
    begin = np.cumsum(num) - num
    positions: Array = np.arange(num.sum()) + np.repeat(first - begin, num)
    return positions % max(1, size)


class Partition(Struct, frozen=True):
    """Trainer `index`'s share of the samples among `num` trainers, and of it one part.

    The shares are disjoint and cover everything; a share is a pure function of (seed, num, index), and so are its
    parts. `hash` sorts samples by a hash of their id: a sample stays where it is when others are added, and all its
    rows (one per combination of parameters) stay together; shares differ in size by chance. `equal` cuts a permuted
    range into shares whose sizes differ by one at most, and deals anew when samples are added.
    """

    index: int
    num: int
    seed: int = 0
    method: Literal["hash", "equal"] = "hash"
    part: Literal["all", "train", "tournament"] = "all"
    tournament_fraction: float = 0.0  # of the share, kept from training

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.num:
            raise UsageError(f"partition {self.index} of {self.num}: they are numbered from 0")
        if not 0.0 <= self.tournament_fraction < 1.0:
            raise UsageError(f"tournament_fraction has to be in [0, 1), not {self.tournament_fraction}")
        if self.method not in ("hash", "equal") or self.part not in ("all", "train", "tournament"):
            raise UsageError(f"unknown method '{self.method}' or part '{self.part}' of a partition")

    def select(self, sample_ids: Array) -> Array:
        """Ascending positions in `sample_ids` (n,) of the members of this part."""
        if self.method == "equal":
            return self._equal(len(sample_ids))
        mine = unit_hash(sample_ids, derive_seed(_PARTITION, self.seed)) * self.num
        keep = mine.astype(np.int64) == self.index
        if self.part != "all":
            draw = unit_hash(sample_ids, derive_seed(_TOURNAMENT, self.seed))
            keep &= (draw < self.tournament_fraction) == (self.part == "tournament")
        return np.flatnonzero(keep)

    def _equal(self, size: int) -> Array:
        lo, hi = size * self.index // self.num, size * (self.index + 1) // self.num
        border = hi - round((hi - lo) * self.tournament_fraction)
        lo, hi = {"all": (lo, hi), "train": (lo, border), "tournament": (border, hi)}[self.part]
        dealt = Permutation(size, derive_seed(_PARTITION, self.seed))
        return np.sort(dealt.at(np.arange(lo, hi, dtype=np.int64)))
