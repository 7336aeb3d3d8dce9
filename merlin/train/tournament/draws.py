"""Random numbers that every trainer computes by itself: functions of a seed and of their purpose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from merlin.train.loading.order import Permutation, derive_seed

# what a draw is for enters it, so that equal seeds of two uses are unrelated
PAIRING, SAMPLING, MUTATION = 0x50414952, 0x53414D50, 0x4D555441


def uniform(*parts: int) -> float:
    """A number in [0, 1)."""
    return (derive_seed(*parts) >> 11) * 2.0**-53


def shuffled(trainers: Sequence[int], *parts: int) -> list[int]:
    """All trainers in random order, whatever order they are given in."""
    ascending = sorted(set(trainers))
    order = Permutation(len(ascending), derive_seed(*parts)).at(np.arange(len(ascending)))
    return [ascending[i] for i in order.tolist()]
