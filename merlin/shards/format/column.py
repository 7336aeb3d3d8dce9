"""The columns of a data set, as they can be read by their names."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from msgspec import Struct

from merlin.base.field import TEXT_DTYPE, dtype_of
from merlin.base.kinds import SampleKind
from merlin.shards.format.manifest_file import ColumnInfo, DataSet, FieldInfo
from merlin.shards.format.segments import Array
from merlin.shards.format.statistics import Statistics

Group = Literal["fields", "inputs", "parameters", "ids"]

_IDS = ("sample_id", "row")


class Column(Struct, frozen=True, kw_only=True):
    """A field, an input, a parameter or an id; of a ragged field, `shape` and `statistics` are those of its items."""

    path: str  # in the shards: "fields/image", "inputs/x", "sample_id"; of a ragged field the group's
    group: Group
    field: FieldInfo  # what its values are; of an input, a parameter or an id: a number or a text

    @property
    def name(self) -> str:
        """The input's or parameter's label, or the field's name."""
        return self.field.name

    @property
    def sample_kind(self) -> SampleKind:
        return self.field.sample_kind

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its values in memory; objects for text."""
        return dtype_of(self.field.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.field.shape

    @property
    def ragged(self) -> bool:
        return self.field.ragged

    @property
    def statistics(self) -> Statistics | None:
        return self.field.statistics

    @property
    def is_text(self) -> bool:
        return self.dtype.kind == "O"

    @property
    def is_scalar(self) -> bool:
        """One number or text for each sample."""
        return not self.shape and not self.ragged

    @property
    def is_complex(self) -> bool:
        return self.dtype.kind == "c"

    @property
    def graph(self) -> str:
        """The graph in which the column is the member `role`; "" for none."""
        return self.field.graph

    @property
    def role(self) -> str:
        return self.field.role

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names that a number, or a series, gets as columns of a matrix."""
        return self.field.column_names


def columns_of(data: DataSet) -> list[Column]:
    """All columns of a data set: fields, inputs, parameters, ids."""
    return [
        *(Column(path=field.path, group="fields", field=field) for field in data.fields),
        *(_label_column(info, "inputs") for info in data.inputs),
        *(_label_column(info, "parameters") for info in data.parameters),
        *(Column(path=name, group="ids", field=FieldInfo(name=name, dtype="<i8")) for name in _IDS),
    ]


def as_input(values: Array) -> Array:
    """The values of an input (n,) as data sets have them: float64 or str."""
    return values.astype("<f8") if values.dtype.kind in "iufb" else values.astype(str).astype(object)


def _label_column(info: ColumnInfo, group: Group) -> Column:
    field = FieldInfo(
        name=info.name,
        kind="text" if info.dtype == TEXT_DTYPE else "scalar",
        dtype=info.dtype,
        shape=info.shape,
        statistics=info.statistics,
    )
    return Column(path=info.path, group=group, field=field)
