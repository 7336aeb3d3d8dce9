"""Which of two models a trainer keeps, and how models are ranked.

Both models of a pair are evaluated on the trainer's own tournament samples, and every trainer decides for itself, so
that partners may keep the same model or swap. A tie keeps the trainer's own. What is not finite loses: a model that
diverged is never taken over, and never kept against one that did not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from merlin.errors import UsageError

Scores = Mapping[str, float]


class DecidingMetric(Struct, frozen=True):
    """What decides, and which way is better."""

    name: str
    direction: Literal["min", "max"] = "min"

    def cost(self, scores: Scores) -> float:
        """The score as something to minimise, infinite if it is not finite; UsageError if it is missing."""
        if self.name not in scores:
            known = ", ".join(scores) or "none"
            raise UsageError(f"no metric '{self.name}' decides the tournament; the model has: {known}")
        value = float(scores[self.name])
        if not math.isfinite(value):
            return math.inf
        return value if self.direction == "min" else -value


class Decision(Struct, frozen=True):
    """Whose model is kept, and why in a few words."""

    kept: Literal["local", "partner", "merged"]
    reason: str


def decide(local: Scores, partner: Scores, metrics: Sequence[DecidingMetric]) -> Decision:
    """The local model stays if it is at least as good by any metric: a partner has to win them all.

    A model with a score that is not finite loses to one without; if both have one, the local model stays.
    Raises UsageError if a metric is missing from the scores.
    """
    mine, theirs = costs(local, metrics), costs(partner, metrics)
    if math.inf in theirs:
        both = " and the local model's" if math.inf in mine else ""
        return Decision("local", f"the partner's {_first_infinite(theirs, metrics)}{both} is not finite")
    if math.inf in mine:
        return Decision("partner", f"the local model's {_first_infinite(mine, metrics)} is not finite")
    for metric, own, other in zip(metrics, mine, theirs, strict=True):
        if own <= other:
            how = "is equal" if own == other else "is better"
            return Decision("local", f"the local model's {metric.name} {how}")
    names = " and ".join(metric.name for metric in metrics)
    return Decision("partner", f"the partner's {names} {'is' if len(metrics) == 1 else 'are'} better")


def decide_merged(
    local: Scores, partner: Scores, merged: Scores, metrics: Sequence[DecidingMetric]
) -> Decision:
    """Decide as `decide`; then the mean of both models is kept if it wins all metrics against the better."""
    first = decide(local, partner, metrics)
    better = local if first.kept == "local" else partner
    if decide(better, merged, metrics).kept == "local":
        return first
    names = " and ".join(metric.name for metric in metrics)
    verb = "is" if len(metrics) == 1 else "are"
    return Decision("merged", f"the {names} of the mean of both {verb} better")


def costs(scores: Scores, metrics: Sequence[DecidingMetric]) -> tuple[float, ...]:
    """One for each metric, to be minimised; infinite for what is not finite."""
    return tuple(metric.cost(scores) for metric in metrics)


def rank(scores: Mapping[int, Scores], metrics: Sequence[DecidingMetric]) -> list[int]:
    """Trainers from the best to the worst.

    By the first metric; where that is equal, by the next ones, then by number. Those with a score that is not finite
    come last.
    """
    keys = {trainer: costs(found, metrics) for trainer, found in scores.items()}
    return sorted(keys, key=lambda trainer: (math.inf in keys[trainer], keys[trainer], trainer))


def is_sound(scores: Scores, metrics: Sequence[DecidingMetric]) -> bool:
    """True if all scores that decide are finite."""
    return math.inf not in costs(scores, metrics)


def _first_infinite(values: Sequence[float], metrics: Sequence[DecidingMetric]) -> str:
    return next(metric.name for metric, value in zip(metrics, values, strict=True) if math.isinf(value))
