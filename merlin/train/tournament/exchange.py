"""What a transport does: it tells who takes part in a round, offers a model to the others, and fetches one."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from merlin.train.tournament.decisions import Scores

State: TypeAlias = dict[str, Any]
T = TypeVar("T")
Waiting: TypeAlias = Generator[None, None, T]  # yields whenever it would have to wait


@dataclass(frozen=True, slots=True)
class Standing:
    """What a trainer tells of its model before a copy is made of any."""

    scores: Scores
    birth: int  # the round in which the model was copied, 0 for one that never was

    def to_json(self) -> dict[str, Any]:
        return {"scores": dict(self.scores), "birth": self.birth}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Standing:
        return Standing(dict(data["scores"]), int(data["birth"]))


@dataclass(frozen=True, slots=True)
class Offer:
    """The model of a trainer as it was in a round, as `Trainer.export_state` gave it."""

    trainer: int
    number: int
    state: State


class Transport(Protocol):
    """Used by the first rank of a trainer. What waits is a generator, so that it can be left between two looks."""

    def participants(self, number: int) -> list[int]:
        """Who takes part in round `number`, ascending, this trainer among them."""
        ...

    def offer(self, number: int, standing: Standing, state: State) -> None:
        """Let the others see the standing and the model."""
        ...

    def standings(self, number: int, trainers: Sequence[int], limit_s: float) -> Waiting[dict[int, Standing]]:
        """Of those that came in time; of the others the newest that is known, if there is one."""
        ...

    def take(self, number: int, moves: Mapping[int, int], limit_s: float) -> Waiting[Offer | None]:
        """The model of the one from whom this trainer takes, in `moves` as {taker: giver}; None if there is none."""
        ...

    def saved(self, number: int, done: bool) -> Waiting[None]:
        """Tell that a checkpoint was written after round `number`, or (not `done`) could not be."""
        ...

    def agree(self, number: int) -> Waiting[int]:
        """The round from which a run goes on, given that of this trainer's newest checkpoint."""
        ...

    def close(self, finished: bool) -> None:
        """Leave; others meet the last model of one that finished, and do not count on one that did not."""
        ...
