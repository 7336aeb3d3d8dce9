"""Who meets whom in a round: a function of the seed, the round and who takes part, so nobody has to ask anybody.

All trainers shuffle alike, and neighbours in that order are pairs; with an odd number the last one plays itself
(LBANN's random pairwise exchange).
"""

from __future__ import annotations

from collections.abc import Sequence

from merlin.errors import UsageError
from merlin.train.tournament.draws import PAIRING, shuffled


def pairs(seed: int, round_number: int, trainers: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs of a round among those who take part; one that is left over is paired with itself."""
    order = shuffled(trainers, PAIRING, seed, round_number)
    met = list(zip(order[::2], order[1::2], strict=False))
    return [*met, (order[-1], order[-1])] if len(order) % 2 else met


def partner_of(trainer: int, seed: int, round_number: int, trainers: Sequence[int]) -> int:
    """Whom a trainer meets, which may be itself; UsageError if it does not take part."""
    for one, other in pairs(seed, round_number, trainers):
        if trainer in (one, other):
            return other if trainer == one else one
    raise UsageError(f"trainer {trainer} takes no part in round {round_number} of {sorted(set(trainers))}")
