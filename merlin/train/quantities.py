"""The columns of a run with their meaning, so that predictions can be read when the data set is far away."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.field import column_names
from merlin.shards.format.column import Column
from merlin.train.loading.columns import channels_first

if TYPE_CHECKING:
    from merlin.train.data import ColumnSelection


class Quantity(Struct, frozen=True):
    """A column; `low` and `high` are the least and greatest value in the data set, None if they are not known."""

    name: str
    path: str  # in the data set
    units: str = ""
    description: str = ""
    low: float | None = None
    high: float | None = None
    shape: tuple[int, ...] = ()  # of one sample, as it is stored
    axis: int | None = None  # of the channels, counted from the end
    channels: tuple[str, ...] = ()
    classes: tuple[int, ...] = ()  # the values of a class, ascending

    @property
    def is_image(self) -> bool:
        return len(self.shape) > 1

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns that a number or a series has in the model's matrix."""
        return column_names(self.name, self.shape)

    @property
    def probabilities(self) -> Quantity:
        """The quantity that holds the probability of each class, (K,)."""
        what = f"probabilities of {', '.join(map(str, self.classes))}"
        return Quantity(f"{self.name}.probabilities", "", description=what, shape=(len(self.classes),))

    @property
    def shape_chw(self) -> tuple[int, int, int]:
        """The shape of an image as models see it."""
        shape = (1, *self.shape) if self.axis is None else channels_first(self.shape, self.axis)
        channels, height, width = shape
        return channels, height, width

    def channel(self, number: int) -> str:
        """The name of a channel; "" if there is only one."""
        if number < len(self.channels):
            return self.channels[number]
        return f"channel {number}" if self.shape_chw[0] > 1 else ""


class Quantities(Struct, frozen=True):
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

    @property
    def predicted_shapes(self) -> dict[str, tuple[int, ...]]:
        """What a model may predict of a sample, by its keys: "scalars" (m,), images (C, H, W) and logits (K,)."""
        scalars = {"scalars": (len(self.scalars),)} if self.scalars else {}
        images = {q.name: q.shape_chw for q in self.images}
        return {**scalars, **images, **{q.name: (len(q.classes),) for q in self.classes}}

    def num_tried(self, least: int) -> int:
        """A number of samples that differs from all axes of what is predicted: with it, swapped axes are noticed."""
        taken = {size for shape in self.predicted_shapes.values() for size in shape}
        return next(num for num in count(least) if num not in taken)

    @staticmethod
    def of(selection: ColumnSelection) -> Quantities:
        return Quantities(
            tuple(map(_quantity, selection.inputs)),
            tuple(map(_quantity, selection.scalars)),
            tuple(map(_quantity, selection.images)),
            tuple(replace(_quantity(found.column), classes=found.values) for found in selection.classes),
        )


def _quantity(column: Column) -> Quantity:
    known, field = column.statistics, column.field
    counted = known is not None and all(known.count)
    return Quantity(
        name=column.name,
        path=column.path,
        units="" if field.units == "1" else field.units,
        description=field.description,
        low=min(known.min) if known is not None and counted else None,
        high=max(known.max) if known is not None and counted else None,
        shape=column.shape,
        axis=field.channel_axis_from_end,
        channels=field.channels,
    )
