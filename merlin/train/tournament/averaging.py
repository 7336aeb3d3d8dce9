"""The mean of several models, which takes the place of each: what was learned on different shares comes together.

Weights, moving averages and the optimiser's moments are averaged, and so are floating-point buffers, such as the
statistics of a batch normalisation. What is counted in whole numbers, and hyper-parameters, stay as they are. Models
that began as different draws have nothing in common that could be averaged, so all trainers begin with the same one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from merlin.errors import TrainingError
from merlin.train.tournament.exchange import Mean, State

BEHIND = 5  # rounds that a model may be older than the newest one and still count


def who_counts(rounds: Mapping[int, int]) -> list[int]:
    """The trainers whose models are averaged, ascending, given the round of each one's newest model.

    Those that are far behind the newest one would drag the others back. If that is this trainer, because it came late,
    it takes the mean of the others.
    """
    newest = max(rounds.values())
    return sorted(trainer for trainer, number in rounds.items() if number >= newest - BEHIND)


def flat(state: State) -> Tensor:
    """All that is averaged of a model, as one vector; the moments come last."""
    return torch.cat([holder[key].ravel() for holder, key in _places(state)])


def with_flat(state: State, vector: Tensor) -> State:
    """A model with the values of a vector that `flat` gave. One that has no moments yet stays without.

    Raises TrainingError if the vector is of another model.
    """
    made = _copied(state)
    places = list(_places(made))
    size = sum(holder[key].numel() for holder, key in places)
    has_moments = any(phase["state"] for phase in state["optimizers"].values())
    if size > len(vector) or (has_moments and size != len(vector)):
        raise TrainingError(
            f"the models that were averaged have {len(vector):,} values, and this one has {size:,}"
        )
    parts = vector[:size].split([holder[key].numel() for holder, key in places])
    for (holder, key), part in zip(places, parts, strict=True):
        holder[key] = part.view_as(holder[key]).to(holder[key].dtype)
    return made


def is_sound(vector: Tensor) -> bool:
    """True if everything in it is finite."""
    least, greatest = torch.aminmax(vector)
    return math.isfinite(least) and math.isfinite(greatest)


def _places(state: State) -> Iterator[tuple[dict[str, Any], str]]:
    """Where the floating-point tensors of a model are, in an order that all trainers know."""
    moments = (
        of for _, phase in sorted(state["optimizers"].items()) for _, of in sorted(phase["state"].items())
    )
    for holder in (state["weights"], state["average"], *moments):
        for key in sorted(holder):
            value = holder[key]
            if isinstance(value, Tensor) and value.is_floating_point():
                yield holder, key


def _copied(state: State) -> State:
    """The same tensors in new mappings."""
    optimizers = {
        phase: {**of, "state": {name: dict(moments) for name, moments in of["state"].items()}}
        for phase, of in state["optimizers"].items()
    }
    return {
        **state, "weights": dict(state["weights"]), "average": dict(state["average"]), "optimizers": optimizers,
    }  # fmt: skip


class Total:
    """Adds up the vectors of trainers; in the same order the mean is the same to the last bit.

    One that is not finite is left out, and so is one that is shorter than others: its optimiser has made no step.
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

    def mean(self, own: State, trainer: int) -> Mean | None:
        """With what is not averaged from `own`, the model of `trainer`; None if nothing was added."""
        if self._sum is None:
            return None
        return mean_of(own, trainer, self._trainers, self._sum / len(self._trainers))


def mean_of(own: State, trainer: int, trainers: Sequence[int], vector: Tensor) -> Mean:
    """The mean as `trainer` takes it over; `trainers` are those whose models are in it."""
    state = with_flat(own, vector)
    if trainer not in trainers:
        state["bad_steps"] = 0
    return Mean(tuple(trainers), state)
