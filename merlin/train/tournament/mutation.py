"""Hyper-parameters of a copied model, changed where the optimiser's exchanged state holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from merlin.train.tournament.strategies import Mutation, mutate

# where an optimiser keeps what schedules start from
BASE = {"lr": "initial_lr", "weight_decay": "weight_decay"}
State = dict[str, Any]


def mutated(
    state: State, factors: Mapping[str, float], seed: int, number: int, trainer: int
) -> tuple[State, dict[str, float]]:
    """A model's state with other hyper-parameters, and by what each was multiplied.

    `factors` has the greatest factor of "lr" and "weight_decay". All phases of a model are changed alike, so that
    the balance between them stays.
    """
    mutations = {name: Mutation(factor) for name, factor in factors.items() if factor > 1.0}
    drawn = mutate(dict.fromkeys(mutations, 1.0), mutations, seed, number, trainer)
    optimizers = {}
    for phase, optimizer in state["optimizers"].items():
        hyper = dict(optimizer["hyper"])
        for name, factor in drawn.items():
            for key in {name, BASE[name]} & set(hyper):
                hyper[key] = hyper[key] * factor
        optimizers[phase] = {**optimizer, "hyper": hyper}
    return {**state, "optimizers": optimizers}, drawn
