"""Whose model a trainer gets: random pairs, truncation selection and regularised evolution.

Each is a function of the seed, the round and who takes part, so that nobody has to ask anybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from merlin.train.tournament.decisions import DecidingMetric, Scores, is_sound, rank
from merlin.train.tournament.draws import PAIRING, SAMPLING, shuffled


def pairs(seed: int, round_number: int, trainers: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs of a round: neighbours in a random order that is the same for all trainers.

    With an odd number the last one is paired with itself (LBANN's random pairwise exchange).
    """
    order = shuffled(trainers, PAIRING, seed, round_number)
    met = list(zip(order[::2], order[1::2], strict=False))
    return [*met, (order[-1], order[-1])] if len(order) % 2 else met


def truncation(scores: Mapping[int, Scores], metrics: Sequence[DecidingMetric], top: int) -> dict[int, int]:
    """Which trainer copies which: all that are not among the `top` best, in turns from these.

    Trainers are ranked; the one on place r >= top, from 0, copies the one on place r mod top (LBANN's truncation
    selection). Only trainers whose scores are finite are copied; if there are none, nobody copies.
    """
    ranking = rank(scores, metrics)
    best = [trainer for trainer in ranking[:top] if is_sound(scores[trainer], metrics)]
    if not best:
        return {}
    return {trainer: best[place % len(best)] for place, trainer in enumerate(ranking) if trainer not in best}


def regularised_evolution(
    seed: int,
    round_number: int,
    births: Mapping[int, int],
    scores: Mapping[int, Scores],
    metrics: Sequence[DecidingMetric],
    sample: int,
) -> dict[int, int]:
    """Which trainer copies which: the oldest one, however good, the best of `sample` random ones, perhaps itself.

    `births` has the round in which each trainer's model was born, by training or as a copy; the caller enters this
    round for the copy. Of equally old ones the lowest number goes. Nobody copies if all that were sampled diverged.
    (Real et al., "Regularized evolution for image classifier architecture search", AAAI 2019.)
    """
    drawn = shuffled(list(births), SAMPLING, seed, round_number)[:sample]
    sound = {trainer: scores[trainer] for trainer in drawn if is_sound(scores[trainer], metrics)}
    if not sound:
        return {}
    oldest = min(births, key=lambda trainer: (births[trainer], trainer))
    return {oldest: rank(sound, metrics)[0]}
