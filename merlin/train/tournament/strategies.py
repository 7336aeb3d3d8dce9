"""Strategies over all trainers at once: truncation selection and regularised evolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from merlin.errors import UsageError
from merlin.train.tournament.decisions import DecidingMetric, Scores, is_sound, rank
from merlin.train.tournament.draws import SAMPLING, shuffled


def truncation(scores: Mapping[int, Scores], metrics: Sequence[DecidingMetric], top: int) -> dict[int, int]:
    """Which trainer copies which: all that are not among the `top` best, in turns from these.

    Trainers are ranked; the one on place r >= top, from 0, copies the one on place r mod top (LBANN's truncation
    selection). Only trainers whose scores are finite are copied; if there are none, nobody copies.
    Raises UsageError if `top` is less than 1.
    """
    if top < 1:
        raise UsageError(f"truncation keeps at least one trainer, not {top}")
    ranking = rank(scores, metrics)
    best = [trainer for trainer in ranking[:top] if is_sound(scores[trainer], metrics)]
    if not best:
        return {}
    return {trainer: best[place % len(best)] for place, trainer in enumerate(ranking) if trainer not in best}


class Birth(Struct, frozen=True):
    """A trainer that becomes the mutated copy of another (or of itself)."""

    child: int
    parent: int


def regularised_evolution(
    seed: int,
    round_number: int,
    births: Mapping[int, int],
    scores: Mapping[int, Scores],
    metrics: Sequence[DecidingMetric],
    sample: int,
) -> Birth | None:
    """The best of `sample` random trainers is copied, mutated, and replaces the oldest one, however good that is.

    `births` has the round in which each trainer's model was born, by training or as a copy; the caller enters this
    round for the child. Of equally old ones the lowest number goes. None if all that were sampled diverged.
    (Real et al., "Regularized evolution for image classifier architecture search", AAAI 2019.)
    Raises UsageError for a sample of less than 1, or trainers that have a birth and no scores.
    """
    if sample < 1:
        raise UsageError(f"evolution samples at least one trainer, not {sample}")
    if missing := sorted(set(births) - set(scores)):
        raise UsageError(f"no scores of trainers {missing}")
    drawn = shuffled(list(births), SAMPLING, seed, round_number)[:sample]
    sound = {trainer: scores[trainer] for trainer in drawn if is_sound(scores[trainer], metrics)}
    if not sound:
        return None
    oldest = min(births, key=lambda trainer: (births[trainer], trainer))
    return Birth(child=oldest, parent=rank(sound, metrics)[0])
