"""What a transport does: it knows who takes part in a round, offers a model to the others, and fetches one."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

from msgspec import Struct
from torch import Tensor

from merlin.train.state_file import State

T = TypeVar("T")
Waiting: TypeAlias = Generator[None, None, T]  # yields whenever it would have to wait


class RoundInterruptedError(Exception):
    """A stop was asked for while a trainer waited for others; its model is as it was before the round."""


class Summary(Struct, frozen=True):
    """What the others see of a trainer's model before it is copied."""

    scores: dict[str, float]
    birth: int  # the round in which the model was copied, 0 for one that never was


class OfferedModel(Struct, frozen=True):
    """The model of a trainer as it was in a round, as `Trainer.export_state` gave it."""

    trainer: int
    number: int
    state: State


class Mean(Struct, frozen=True):
    """The mean of the values (n,) of the models of these trainers, which `Trainer.take_values` takes."""

    trainers: tuple[int, ...]
    values: Tensor


class ModelTransport(Protocol):
    """Carries models between trainers; used by the first rank of each.

    Methods that wait are generators, so that waiting can be given up between two looks.
    """

    def participants(self, number: int) -> list[int]:
        """The trainers that take part in round `number`, ascending, this trainer among them."""
        ...

    def offer(self, number: int, summary: Summary, state: State) -> None:
        """Let the others see the summary and the model."""
        ...

    def summaries(self, number: int, trainers: Sequence[int], limit_s: float) -> Waiting[dict[int, Summary]]:
        """The summaries that came in time; for the other trainers the newest known ones, if there are any."""
        ...

    def take(self, number: int, moves: Mapping[int, int], limit_s: float) -> Waiting[OfferedModel | None]:
        """The model that this trainer takes, by `moves` as {taker: giver}; None if there is none."""
        ...

    def mean(self, number: int, own: Tensor, limit_s: float) -> Waiting[Mean | None]:
        """Offer this trainer's values (n,), and get the mean of those of all who take part in round `number`.

        None if no values are sound.
        """
        ...

    def saved(self, number: int, done: bool) -> Waiting[None]:
        """Report that a checkpoint was written after round `number`, or (not `done`) could not be."""
        ...

    def agree(self, number: int) -> Waiting[int]:
        """The round from which a run goes on, given that of this trainer's newest checkpoint."""
        ...

    def close(self, finished: bool) -> None:
        """Leave the tournament.

        The others still meet the last model of a trainer that finished, and do not count on one that did not.
        """
        ...
