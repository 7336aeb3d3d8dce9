"""The context that a step's function gets in addition to its inputs."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from merlin.plan.plan import Scalar


class FunctionContext(Struct, frozen=True, kw_only=True):
    """The second argument of a step's function.

    `seed` is the study's seed, the same in every call. Use `generators` for random numbers that do not depend on the
    division into chunks, or on calls that are repeated after a crash.
    """

    sample_ids: NDArray[np.int64]  # (n,) of the samples in this call
    seed: int
    workspace: Path  # of the study
    instance: str  # id of the step instance; its directory is workspace / instance
    step: str
    params: dict[str, Scalar]  # global.parameters that the step uses
    variables: dict[str, Scalar]  # of the study
    chunk: tuple[int, int]  # [lo, hi) of the samples handed out together; more than n in a retry
    attempt: int

    def generator(self, position: int) -> np.random.Generator:
        """The random numbers of the sample at `position` in this call: the same whenever that sample runs."""
        step = zlib.crc32(self.instance.encode())
        return np.random.default_rng([self.seed, step, int(self.sample_ids[position])])

    def generators(self) -> list[np.random.Generator]:
        """One generator per sample of this call."""
        return [self.generator(i) for i in range(len(self.sample_ids))]


Inputs = dict[str, Any]  # column label -> (n,) array; parameter -> its value
