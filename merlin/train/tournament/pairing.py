"""The pairs of a round: a function of the seed, the round and who takes part, so that nobody has to ask anybody.

All trainers shuffle alike, and neighbours in that order are pairs; with an odd number the last one plays itself
(LBANN's random pairwise exchange).
"""

from __future__ import annotations

from collections.abc import Sequence

from merlin.train.tournament.draws import PAIRING, shuffled


def pairs(seed: int, round_number: int, trainers: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs of a round among those who take part; one that is left over is paired with itself."""
    order = shuffled(trainers, PAIRING, seed, round_number)
    met = list(zip(order[::2], order[1::2], strict=False))
    return [*met, (order[-1], order[-1])] if len(order) % 2 else met
