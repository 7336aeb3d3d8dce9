"""Hyper-parameters of a copied model, changed where the optimiser's exchanged state holds them."""

from __future__ import annotations

from collections.abc import Mapping

from merlin.train.state_file import State
from merlin.train.tournament.draws import MUTATION, uniform
from merlin.train.widths import is_allowed

# where an optimiser keeps what schedules start from
BASE = {"lr": "initial_lr", "weight_decay": "weight_decay"}


def drawn_factor(name: str, greatest: float, seed: int, number: int, trainer: int) -> float:
    """A number between 1 / greatest and greatest, evenly on a logarithmic scale; a function of its arguments."""
    letters = name.encode()
    words = (int.from_bytes(letters[i : i + 8], "little") for i in range(0, len(letters), 8))
    return float(greatest ** (2.0 * uniform(MUTATION, seed, number, trainer, *words) - 1.0))


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
    drawn = {
        name: drawn_factor(name, greatest, seed, number, trainer)
        for name, greatest in factors.items()
        if greatest > 1.0
    }
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
