"""After which steps rounds are played, and after which of them all trainers write a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from merlin.train.config import TrainConfig

TAIL = 0.25  # the part of a run in which the interval shrinks
CHECKPOINT_STEPS = 500  # from one checkpoint to the next, where nothing is configured


class Timing(Struct, frozen=True):
    """A round every `interval` steps, but none after the last step.

    With `last`, the interval shrinks to that in the last part of the run, in proportion to the steps that are left, and
    the run ends with a round.
    """

    interval: int
    last: int | None
    num_steps: int

    @staticmethod
    def of(config: TrainConfig, num_steps: int) -> Timing | None:
        """The timing of a configuration; None if no rounds are played."""
        if not config.is_tournament:
            return None
        tournament = config.tournament
        return Timing(tournament.interval, tournament.interval_end if config.averages else None, num_steps)

    @property
    def final(self) -> int:
        """The last step that a round may come after."""
        return self.num_steps if self.last is not None else self.num_steps - 1

    def following(self, step: int) -> int:
        """The step after which the next round is played, after one at `step` (0 for the first round).

        It may be later than the end of the run.
        """
        left = self.num_steps - step
        if self.last is None or left <= 0:
            return step - step % self.interval + self.interval
        tail = max(1.0, TAIL * self.num_steps)
        shrunk = round(self.interval * min(1.0, left / tail))
        return step + min(left, max(self.last, shrunk))


def rounds_per_checkpoint(config: TrainConfig) -> int:
    """The number of rounds between checkpoints of all trainers: 1, unless rounds are frequent."""
    steps = config.training.checkpoint_every or CHECKPOINT_STEPS
    return -(-steps // config.tournament.interval) if config.averages else 1
