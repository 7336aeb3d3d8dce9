"""Several models as one, which predicts their mean and their standard deviation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace
from torch import Tensor, nn

from merlin.train.quantities import Quantity
from merlin.train.results.members import Members

SUFFIX = "_std"  # of a standard deviation's name


class EnsembleModel(nn.Module):
    """Inputs -> means, and "<name>_std": scaled standard deviations, all in the data set's units.

    It is called as `PhysicalModel` is, and gives arrays of the same shapes and types. Members predict one after
    another, so that a batch takes the memory of a few predictions however many there are.
    """

    def __init__(self, members: Members, scales: Mapping[str, float] | None = None) -> None:
        """`scales` multiply the members' standard deviations, by field; without them these stay as they are."""
        super().__init__()
        self.members = members
        self.models = nn.ModuleList(member.model for member in members.models)
        self.scales = dict(scales or {})
        first = members.models[0].model
        self.quantities, self.input_names = first.quantities, first.input_names

    def forward(self, *given: Tensor) -> dict[str, Tensor]:
        return self._joined(model(*given) for model in self.models)

    def predicted_from(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs of `forward` for a normalised batch."""
        return self._joined(model.predicted_from(batch) for model in self.models)  # type: ignore[operator]

    def _joined(self, predictions: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Mean and standard deviation by Welford's algorithm, which loses no digits by cancellation."""
        mean: dict[str, Tensor] = {}
        squares: dict[str, Tensor] = {}
        for num, made in enumerate(predictions, 1):
            for name, values in made.items():
                if num == 1:
                    mean[name], squares[name] = values.clone(), values.new_zeros(values.shape)
                    continue
                gap = values - mean[name]
                mean[name] += gap / num
                squares[name] += gap * (values - mean[name])
        found: dict[str, Tensor] = {}
        for name, values in mean.items():
            std = (squares[name] / (len(self.models) - 1)).sqrt()
            found |= {name: values, name + SUFFIX: std * self.scales.get(name, 1.0)}
        return found


def with_std(predicted: Iterable[Quantity]) -> tuple[Quantity, ...]:
    """What an ensemble predicts: the quantities of one model, each with its standard deviation behind it."""
    found = []
    for quantity in predicted:
        name, what = quantity.name + SUFFIX, f"standard deviation of {quantity.name}"
        std = replace(quantity, name=name, path="", description=what, low=None, high=None)
        found += [quantity, std]
    return tuple(found)
