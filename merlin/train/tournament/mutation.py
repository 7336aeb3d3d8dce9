"""Hyper-parameters of a copied model, changed where the optimiser's exchanged state holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from merlin.train.tournament.strategies import Mutation, mutate
from merlin.train.widths import is_allowed

# where an optimiser keeps what schedules start from
BASE = {"lr": "initial_lr", "weight_decay": "weight_decay"}
State = dict[str, Any]


def mutated(
    state: State,
    factors: Mapping[str, float],
    seed: int,
    number: int,
    trainer: int,
    configured_capacity: float | None = None,
) -> tuple[State, dict[str, float]]:
    """A model's state with other hyper-parameters, and by what each was multiplied.

    `factors` has the greatest factor of "lr", "weight_decay" and "width". All phases of a model are changed alike, so
    that the balance between them stays. What is changed of the width is the capacity that the state asks for; its
    weights stay those of its parent. A width that is not allowed stays as it was, with factor 1.
    """
    mutations = {name: Mutation(factor) for name, factor in factors.items() if factor > 1.0}
    drawn = mutate(dict.fromkeys(mutations, 1.0), mutations, seed, number, trainer)
    optimizers = {}
    for phase, optimizer in state["optimizers"].items():
        hyper = dict(optimizer["hyper"])
        for name in drawn.keys() & BASE.keys():
            for key in {name, BASE[name]} & set(hyper):
                hyper[key] = hyper[key] * drawn[name]
        optimizers[phase] = {**optimizer, "hyper": hyper}
    capacity = state.get("capacity")
    if "width" in drawn and capacity is not None and configured_capacity is not None:
        if not is_allowed(capacity * drawn["width"], configured_capacity):
            drawn["width"] = 1.0
        capacity *= drawn["width"]
    return {**state, "optimizers": optimizers, "capacity": capacity}, drawn
