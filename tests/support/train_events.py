"""Events of a training loop."""

from __future__ import annotations

from merlin.train.events import LossesTaken
from merlin.train.progress import LoopProgress


def losses(step: int, loss: float = 0.5) -> LossesTaken:
    return LossesTaken(
        step=step,
        epoch=1.0,
        progress=LoopProgress(),
        losses={"loss": loss},
        lr={"model": 0.1},
        samples_per_s=9.0,
    )
