"""All floating-point values of a model, with its moving average and its optimisers' moments, as one vector.

The state is one that `Learner.export` gives. All trainers know the order of its tensors, and the moments come
last, so a model whose optimiser has made no step has a shorter vector, with the same places as the beginning
of the others.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from merlin.errors import TrainingError
from merlin.train.state_file import State


def flat(state: State) -> Tensor:
    """The values of a state (n,)."""
    return joined(tensors_of(state))


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """The values of tensors (n,)."""
    return torch.cat([values.ravel() for values in tensors])


def tensors_of(state: State) -> list[Tensor]:
    """The tensors whose values are in the vector, in an order that all trainers know."""
    moments = (
        of for _, phase in sorted(state["optimizers"].items()) for _, of in sorted(phase["state"].items())
    )
    holders = (state["weights"], state["average"], *moments)
    values = (holder[key] for holder in holders for key in sorted(holder))
    return [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]


def replaced(state: State, vector: Tensor) -> State:
    """A new state with the values of a vector. Raises TrainingError if the vector is of another model."""
    made = copy.deepcopy(state)
    overwrite(tensors_of(made), vector, has_moments=has_moments(made))
    return made


@torch.no_grad()
def overwrite(tensors: Sequence[Tensor], vector: Tensor, *, has_moments: bool) -> None:
    """Write the values of a vector (n,) into tensors; tensors without moments get only its beginning.

    Raises TrainingError if the vector is of another model.
    """
    sizes = [values.numel() for values in tensors]
    size = sum(sizes)
    if size > len(vector) or (has_moments and size != len(vector)):
        raise TrainingError(
            f"the models that were averaged have {len(vector):,} values, and this one has {size:,}"
        )
    parts = vector[:size].split(sizes)
    torch._foreach_copy_(
        list(tensors), [part.view_as(values) for part, values in zip(parts, tensors, strict=True)]
    )


def has_moments(state: State) -> bool:
    """False for a model whose optimisers have made no step."""
    return any(phase["state"] for phase in state["optimizers"].values())
