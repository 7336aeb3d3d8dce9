"""What the loop remembers over a restart: the best model, early stopping, rounds; and the metric that decides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field

from merlin.errors import TrainingError

if TYPE_CHECKING:
    from merlin.train.config import EarlyStopping, TrainConfig

Order = Literal["min", "max"]


class Judge(Struct, frozen=True):
    """The metric that decides what is best, on the validation split."""

    metric: str
    direction: Order

    @staticmethod
    def of(config: TrainConfig, directions: Mapping[str, Order]) -> Judge:
        """The metric of early stopping, else the tournament's first, else the loss."""
        name, direction = deciding_metric(config), None
        if config.training.early_stopping is None and config.tournament.metrics:
            direction = config.tournament.metrics[0].direction
        return Judge(name, direction or directions[name])

    def is_better(self, value: float, than: float | None, by: float = 0.0) -> bool:
        """True if a value is finite, and better; anything finite is better than None."""
        if not math.isfinite(value):
            return False
        if than is None:
            return True
        return value < than - by if self.direction == "min" else value > than + by


def deciding_metric(config: TrainConfig) -> str:
    if config.training.early_stopping is not None:
        return config.training.early_stopping.metric
    return config.tournament.metrics[0].name if config.tournament.metrics else "loss"


class LoopProgress(Struct):
    """What the loop remembers over a restart."""

    best: float | None = None
    best_step: int = 0
    best_metrics: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)  # of the last validation
    validated_step: int = -1
    reference: float | None = None  # what the next improvement is compared with
    stale: int = 0  # validations since there was an improvement
    round: int = 0
    round_step: int = 0  # after which it was played
    common_round: int = 0  # the newest one after which all trainers write a checkpoint
    wins: int = 0  # rounds after which the trainer kept its own model, unchanged
    train_s: float = 0.0

    def add_validation(
        self, metrics: dict[str, float], step: int, judge: Judge, stopping: EarlyStopping | None
    ) -> bool:
        """Remember the metrics of a validation; True if the trainer has never been better.

        Raises TrainingError if the metric that decides is not among them.
        """
        if judge.metric not in metrics:
            known = ", ".join(metrics)
            raise TrainingError(f"the model computes no metric '{judge.metric}'; it computes: {known}")
        self.metrics, self.validated_step = metrics, step
        value = metrics[judge.metric]
        is_best = judge.is_better(value, self.best)
        if is_best:
            self.best, self.best_step, self.best_metrics = value, step, metrics
        self.stale += 1
        if judge.is_better(value, self.reference, 0.0 if stopping is None else stopping.min_delta):
            self.reference, self.stale = value, 0
        return is_best

    def forget_best(self) -> None:
        """Begin anew to look for the best model, because another metric decides."""
        self.best, self.best_step, self.best_metrics = None, 0, {}
        self.reference, self.stale = None, 0
        self.validated_step = -1  # a run that has no steps left is validated once more

    def early_end(self, judge: Judge, stopping: EarlyStopping | None) -> str:
        """Why the run ends before its last step; "" if it does not."""
        if stopping is None or self.stale < stopping.patience:
            return ""
        return f"{judge.metric} has not improved in {self.stale} validations, since step {self.best_step:,}"
