"""The columns of a data set, as they can be read by their names."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from msgspec import Struct

from merlin.base.field import column_names, dtype_of
from merlin.shards.format.manifest_file import ColumnInfo, DataSet, FieldInfo
from merlin.shards.format.statistics import Statistics

Group = Literal["fields", "inputs", "parameters", "ids"]

_IDS = ("sample_id", "row")


class Column(Struct, frozen=True, kw_only=True):
    """A field, an input, a parameter or an id; of a ragged field, `shape` and `statistics` are those of its items."""

    name: str  # the input's or parameter's label, or the field's name
    path: str  # in the shards: "fields/image", "inputs/x", "sample_id"; of a ragged field the group's
    group: Group
    kind: str = "scalar"  # of a field; scalar or text for all others
    dtype: np.dtype[Any]  # object: text
    shape: tuple[int, ...] = ()
    ragged: bool = False
    statistics: Statistics | None = None
    field: FieldInfo | None = None

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
    def channel_axis(self) -> int | None:
        """The axis of `shape` that separates channels."""
        return None if self.field is None else self.field.channel_axis

    @property
    def graph(self) -> str:
        """The graph in which the column is the member `role`; "" for none."""
        return "" if self.field is None else self.field.graph

    @property
    def role(self) -> str:
        return "" if self.field is None else self.field.role

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names that a number, or a series, gets as columns of a matrix."""
        return column_names(self.name, self.shape)


def columns_of(data: DataSet) -> list[Column]:
    """All columns of a data set: fields, inputs, parameters, ids."""
    return [
        *(field_column(field) for field in data.fields),
        *(_label_column(info, "inputs") for info in data.inputs),
        *(_label_column(info, "parameters") for info in data.parameters),
        *(Column(name=name, path=name, group="ids", dtype=np.dtype("<i8")) for name in _IDS),
    ]


def field_column(field: FieldInfo) -> Column:
    return Column(
        name=field.name,
        path=field.path,
        group="fields",
        kind=field.kind,
        dtype=dtype_of(field.dtype),
        shape=field.shape,
        ragged=field.ragged,
        statistics=field.statistics,
        field=field,
    )


def _label_column(info: ColumnInfo, group: Group) -> Column:
    dtype = dtype_of(info.dtype)
    return Column(
        name=info.name,
        path=info.path,
        group=group,
        kind="text" if dtype.kind == "O" else "scalar",
        dtype=dtype,
        shape=info.shape,
        statistics=info.statistics,
    )
