"""What the columns of a run are, so that predictions can be read when the data set is far away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from merlin.base.records import as_kind, to_plain
from merlin.train.loading.columns import Column, column_names

if TYPE_CHECKING:
    from merlin.shards.format.manifest_file import FieldInfo
    from merlin.shards.reading.reader import Ensemble
    from merlin.train.data import Selection


@dataclass(frozen=True)
class Quantity:
    """A column; `low` and `high` are the least and greatest value in the data set, None if nobody counted."""

    name: str
    path: str  # in the data set
    units: str = ""
    description: str = ""
    low: float | None = None
    high: float | None = None
    shape: tuple[int, ...] = ()  # of one sample, as it is stored
    axis: int | None = None  # of the channels, counted from the end
    channels: tuple[str, ...] = ()
    classes: tuple[int, ...] = ()  # the values of a field that tells classes, ascending

    @property
    def is_image(self) -> bool:
        return len(self.shape) > 1

    @property
    def column_names(self) -> tuple[str, ...]:
        """Of a number, or of a series, as columns of the model's matrix."""
        return column_names(self.name, self.shape)

    @property
    def probabilities(self) -> Quantity:
        """Of what tells classes: the probability of each of them, (K,)."""
        what = f"probabilities of {', '.join(map(str, self.classes))}"
        return Quantity(f"{self.name}.probabilities", "", description=what, shape=(len(self.classes),))

    @property
    def shape_chw(self) -> tuple[int, int, int]:
        """Of an image as models see it."""
        if len(self.shape) == 2:
            return (1, *self.shape)
        axis = self.channel_axis + len(self.shape)
        height, width = (size for i, size in enumerate(self.shape) if i != axis)
        return self.shape[axis], height, width

    @property
    def channel_axis(self) -> int:
        """Of an image with three axes, counted from the end."""
        return -1 if self.axis is None else self.axis

    def channel(self, number: int) -> str:
        """What a channel is called; nothing if there is only one."""
        if number < len(self.channels):
            return self.channels[number]
        return f"channel {number}" if self.shape_chw[0] > 1 else ""


@dataclass(frozen=True)
class Quantities:
    """All columns that a run uses, in the order of its batches."""

    inputs: tuple[Quantity, ...] = ()
    scalars: tuple[Quantity, ...] = ()
    images: tuple[Quantity, ...] = ()
    classes: tuple[Quantity, ...] = ()

    @property
    def columns(self) -> tuple[Quantity, ...]:
        """The inputs that are numbers or series: the columns of a matrix."""
        return tuple(q for q in self.inputs if not q.is_image)

    @property
    def input_images(self) -> tuple[Quantity, ...]:
        return tuple(q for q in self.inputs if q.is_image)

    @property
    def outputs(self) -> tuple[Quantity, ...]:
        return (*self.scalars, *self.classes, *self.images)

    @staticmethod
    def of(ens: Ensemble, selection: Selection) -> Quantities:
        def one(column: Column) -> Quantity:
            return _quantity(column, ens.fields.get(column.name) if column.group == "fields" else None)

        def some(columns: Sequence[Column]) -> tuple[Quantity, ...]:
            return tuple(map(one, columns))

        classes = tuple(replace(one(found.column), classes=found.values) for found in selection.classes)
        return Quantities(some(selection.inputs), some(selection.scalars), some(selection.images), classes)

    def to_json(self) -> dict[str, Any]:
        return to_plain(self)  # type: ignore[no-any-return]

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Quantities:
        """What `to_json` made. Raises ValueError for anything else."""
        return as_kind(data, Quantities)


def _quantity(column: Column, info: FieldInfo | None) -> Quantity:
    known = column.statistics
    counted = known is not None and all(known.count)
    return Quantity(
        name=column.name,
        path=column.path,
        units="" if info is None or info.units == "1" else info.units,
        description="" if info is None else info.description,
        low=min(known.min) if known is not None and counted else None,
        high=max(known.max) if known is not None and counted else None,
        shape=column.shape,
        axis=column.axis,
        channels=() if info is None else info.channels,
    )
