"""Which split a sample belongs to: a hash of its id, so it never moves when samples are added.

The hash is SplitMix64's output function (Steele, Lea and Flood, OOPSLA 2014) of ``id XOR mix(seed)``; its
upper 53 bits, as a fraction of one, are compared with the cumulative fractions of the splits in the order of
the spec.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from merlin.shards.format.segments import Array

ALGORITHM = "splitmix64"

GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


def mix64(x: Array) -> Array:
    """SplitMix64's output function of unsigned 64-bit integers."""
    with np.errstate(over="ignore"):
        x = x + GAMMA
        x = (x ^ (x >> np.uint64(30))) * MIX_1
        x = (x ^ (x >> np.uint64(27))) * MIX_2
    return np.asarray(x ^ (x >> np.uint64(31)))


def unit_hash(sample_ids: Array, seed: int) -> Array:
    """A number in [0, 1) per sample id."""
    salt = mix64(np.array([seed % 2**64], dtype=np.uint64))[0]
    mixed = mix64(np.asarray(sample_ids, dtype=np.int64).astype(np.uint64) ^ salt)
    return np.asarray((mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def split_indices(sample_ids: Array, fractions: Mapping[str, float], seed: int) -> Array:
    """Index into `fractions` per sample id; len(fractions) where the sum of fractions is below 1."""
    borders = np.cumsum(np.fromiter(fractions.values(), dtype=np.float64, count=len(fractions)))
    if len(borders) and abs(borders[-1] - 1.0) < 1e-9:
        borders[-1] = 1.0
    return np.searchsorted(borders, unit_hash(sample_ids, seed), side="right")
