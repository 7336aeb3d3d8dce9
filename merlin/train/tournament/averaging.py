"""The mean of several models, which takes the place of each: what was learned on different shares comes together.

Weights, moving averages and the optimiser's moments are averaged, and so are floating-point buffers, such as the
statistics of a batch normalisation. What is counted in whole numbers, and hyper-parameters, stay as they are. Models
that began as different draws have nothing in common that could be averaged, so all trainers begin with the same one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from merlin.train.flat import flat, replaced
from merlin.train.state_file import State
from merlin.train.tournament.exchange import Mean

BEHIND = 5  # rounds that a model may be older than the newest one and still count


def who_counts(rounds: Mapping[int, int]) -> list[int]:
    """The trainers whose models are averaged, ascending, given the round of each one's newest model.

    Those that are far behind the newest one would drag the others back. If that is this trainer, because it came late,
    it takes the mean of the others.
    """
    newest = max(rounds.values())
    return sorted(trainer for trainer, number in rounds.items() if number >= newest - BEHIND)


def is_sound(vector: Tensor) -> bool:
    """True if everything in it is finite."""
    least, greatest = torch.aminmax(vector)
    return math.isfinite(least) and math.isfinite(greatest)


class Total:
    """Adds up the vectors of trainers; in the same order they have the same mean to the last bit.

    A vector that is not finite is left out, and so is one that is shorter than others: the optimiser of its
    model has made no step.
    """

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._trainers: list[int] = []

    def add(self, trainer: int, vector: Tensor) -> None:
        if not is_sound(vector):
            return
        if self._sum is None or len(vector) > len(self._sum):
            self._sum, self._trainers = vector.clone(), [trainer]
        elif len(vector) == len(self._sum):
            self._sum += vector
            self._trainers.append(trainer)

    def mean(self) -> Mean | None:
        """The mean of what was added; None if that is nothing."""
        if self._sum is None:
            return None
        return Mean(tuple(self._trainers), self._sum / len(self._trainers))


def mean_of_both(states: Mapping[int, State], own: int) -> State | None:
    """The mean of two trainers' models, the same for both; what is not averaged is that of `own`.

    None if a model is not finite.
    """
    total = Total()
    for trainer in sorted(states):
        total.add(trainer, flat(states[trainer]))
    mean = total.mean()
    return None if mean is None or len(mean.trainers) < len(states) else replaced(states[own], mean.values)
