"""The columns that a data set offers to a trainer: its fields, inputs and parameters, by name."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from merlin.errors import UsageError
from merlin.shards.ensemble import Ensemble
from merlin.shards.format.column import Column, columns_of
from merlin.shards.format.digest import combine, digest_array
from merlin.shards.format.segments import Array


class Columns:
    """All columns of an ensemble."""

    def __init__(self, ens: Ensemble) -> None:
        self._where = str(ens.path)
        found = columns_of(ens.manifest)
        self.fields = {column.name: column for column in found if column.group == "fields"}
        self.inputs = {column.name: column for column in found if column.group == "inputs"}
        self.parameters = {column.name: column for column in found if column.group == "parameters"}
        self._by_path = {column.path: column for column in found if column.group != "ids"}

    def field(self, name: str) -> list[Column]:
        """A field, or the members of a graph."""
        members = [column for column in self.fields.values() if column.graph == name]
        return members or [self._find(name, self.fields, "field")]

    def input(self, name: str) -> Column:
        """A column that a trainer may take for an input: an input by its label, else a parameter, else a field."""
        labels = {**self.parameters, **self.inputs}
        if name in self.fields and name not in labels:
            return self.fields[name]
        return self._find(name, labels, "input or parameter")

    def find(self, name: str) -> Column:
        """A column by its path, as "inputs/x", or by its name: a field, else an input, else a parameter."""
        if name in self._by_path:
            return self._by_path[name]
        everything = {**self.parameters, **self.inputs, **self.fields}
        return self._find(name, everything, "field, input or parameter")

    def _find(self, name: str, among: dict[str, Column], what: str) -> Column:
        if name not in among:
            raise UsageError(f"no {what} '{name}' in {self._where}; there are: {', '.join(among) or 'none'}")
        return among[name]

    def default_fields(self) -> list[Column]:
        return [column for column in self.fields.values() if not column.is_text]

    def default_labels(self) -> list[Column]:
        """All inputs and parameters that are real numbers."""
        labels = (*self.inputs.values(), *self.parameters.values())
        return [column for column in labels if not column.is_text and not column.is_complex]


def refuse_text(columns: Iterable[Column]) -> None:
    """Raise UsageError if one of these columns cannot become a tensor."""
    for column in columns:
        if column.is_text:
            raise UsageError(f"'{column.name}' is text and cannot become a tensor; leave it out")


def identity(ens: Ensemble) -> str:
    """A value that is equal for ensembles of the same samples in the same order."""
    content = ens.manifest.content_digest
    return content if ens.is_whole else combine(content, digest_array(ens.positions))


def rows_of(ens: Ensemble, split: str | None) -> Array:
    """The rows of a split, ascending, or of all samples. Raises UsageError if there is no such split."""
    if split is None:
        return np.arange(len(ens))
    if split not in ens.splits:
        raise UsageError(f"no split '{split}' in {ens.path}; there are: {', '.join(ens.splits) or 'none'}")
    return ens.splits[split]


def channels_first(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    """The shape of a sample with its axis of channels in front, if it has one; a negative axis counts from the end."""
    if axis is None:
        return shape
    axis %= len(shape)
    return (shape[axis], *shape[:axis], *shape[axis + 1 :])
