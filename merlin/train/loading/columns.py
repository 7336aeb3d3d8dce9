"""What a data set offers to a trainer: its fields, inputs and parameters, by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from merlin.errors import UsageError
from merlin.base.field import TEXT_DTYPE
from merlin.shards.format.digest import combine, digest_array
from merlin.shards.format.manifest_file import ColumnInfo, FieldInfo
from merlin.shards.format.statistics import Statistics
from merlin.shards.reading.reader import Ensemble, Selection

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A field, an input or a parameter; of a ragged field, `shape`, `axis` and `statistics` are those of its items."""

    path: str  # "fields/image", "inputs/x", "parameters/P"; of a ragged field the group's
    name: str
    group: Literal["fields", "inputs", "parameters"]
    kind: str
    dtype: np.dtype[Any]  # object for text
    shape: tuple[int, ...]
    axis: int | None  # of the channels, counted from the end
    statistics: Statistics | None
    ragged: bool = False
    graph: str = ""
    role: str = ""

    @property
    def is_text(self) -> bool:
        return self.dtype.kind == "O"

    @property
    def is_real(self) -> bool:
        """What a group of names means: floating-point numbers, and of inputs and parameters integers, too."""
        return self.dtype.kind in ("f" if self.group == "fields" else "iuf")

    @property
    def is_complex(self) -> bool:
        return self.dtype.kind == "c"

    @property
    def column_names(self) -> tuple[str, ...]:
        """Of a number, or of a series, as columns of a matrix."""
        return column_names(self.name, self.shape)

    def read(self, ens: Ensemble, rows: Array) -> Any:
        """Values at rows (m,) of the ensemble: (m, *shape), or a `Ragged`."""
        return ens.column_at(self.path)[rows]


def column_names(name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
    """What a number, or a series, is called as columns of a matrix: "x", or "x[0]", "x[1]", …"""
    return tuple(f"{name}[{i}]" for i in range(shape[0])) if shape else (name,)


class Columns:
    """All columns of an ensemble."""

    def __init__(self, ens: Ensemble) -> None:
        manifest = ens.manifest
        self._where = str(ens.path)
        self.fields = {info.name: _field(info) for info in manifest.fields}
        self.inputs = {info.name: _label(info, "inputs") for info in manifest.inputs}
        self.parameters = {info.name: _label(info, "parameters") for info in manifest.parameters}

    def field(self, name: str) -> list[Column]:
        """A field, or the members of a graph."""
        members = [column for column in self.fields.values() if column.graph == name]
        return members or [self._find(name, self.fields, "field")]

    def label(self, name: str) -> Column:
        """An input by its label, else a parameter."""
        return self._find(name, {**self.parameters, **self.inputs}, "input or parameter")

    def input(self, name: str) -> Column:
        """What a trainer may take for an input: an input by its label, else a parameter, else a field."""
        is_field = name in self.fields and name not in self.inputs and name not in self.parameters
        return self.fields[name] if is_field else self.label(name)

    def find(self, name: str) -> Column:
        """A field, else an input, else a parameter."""
        return self._find(
            name, {**self.parameters, **self.inputs, **self.fields}, "field, input or parameter"
        )

    def _find(self, name: str, among: dict[str, Column], what: str) -> Column:
        if name not in among:
            raise UsageError(f"no {what} '{name}' in {self._where}; there are: {', '.join(among) or 'none'}")
        return among[name]

    def default_fields(self) -> list[Column]:
        return [column for column in self.fields.values() if not column.is_text]

    def default_labels(self) -> list[Column]:
        """All inputs and parameters that are real numbers."""
        labels = (*self.inputs.values(), *self.parameters.values())
        return [c for c in labels if not c.is_text and not c.is_complex]


def refuse_text(columns: Iterable[Column]) -> None:
    """UsageError if one of them cannot become a tensor."""
    for column in columns:
        if column.is_text:
            raise UsageError(f"'{column.name}' is text and cannot become a tensor; leave it out")


def _field(info: FieldInfo) -> Column:
    return Column(
        path=info.path,
        name=info.name,
        group="fields",
        kind=info.kind,
        dtype=_dtype(info.dtype),
        shape=info.shape,
        axis=_channel_axis(info),
        statistics=info.statistics,
        ragged=info.ragged,
        graph=info.graph,
        role=info.role,
    )


def _label(info: ColumnInfo, group: Literal["inputs", "parameters"]) -> Column:
    return Column(
        info.path, info.name, group, "scalar", _dtype(info.dtype), info.shape, None, info.statistics
    )


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(object if name == TEXT_DTYPE else name)


def _channel_axis(info: FieldInfo) -> int | None:
    """The axis that the manifest's statistics are taken along (merlin.shards.format.statistics.channel_axis)."""
    ndim = len(info.shape)
    if info.layout:
        return info.layout.index("c") - ndim if "c" in info.layout else None
    if "channel" in info.axes and len(info.axes) == ndim + info.ragged:
        return info.axes.index("channel") - ndim - info.ragged
    if info.kind == "ragged":
        return -1 if ndim == 1 else None
    spatial = {"image": 2, "volume": 3}.get(info.kind)
    return -1 if spatial is not None and ndim > spatial else None


def identity(ens: Ensemble) -> str:
    """Equal for ensembles of the same samples in the same order."""
    content = ens.manifest.content_digest
    return combine(content, digest_array(ens.positions)) if isinstance(ens, Selection) else content
