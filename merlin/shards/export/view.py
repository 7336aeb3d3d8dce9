"""The part of a data set that is exported: chosen columns of chosen rows, read in blocks of bounded size.

Positions count the exported samples, 0 <= position < num. A block is a dict from column names to arrays
(rows, …), arrays of str, or `Ragged` whose offsets begin with 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec.structs import asdict

from merlin.errors import UsageError
from merlin.shards.ensemble import Ensemble
from merlin.shards.format.column import Column, columns_of
from merlin.shards.format.manifest_file import DataSet
from merlin.shards.format.segments import Array, Ragged, Values, stretches_of

BLOCK_BYTES = 32 << 20
_TEXT_BYTES = 1024  # assumed size of a text value
_MAX_ROWS = 4096
_IDS = ("sample_id", "row")  # always the last two columns

Block = dict[str, Values]


class ExportColumn(Column, frozen=True, kw_only=True):
    """A column of the data set as it is exported; `key` is its name in formats without groups."""

    key: str

    @property
    def item_bytes(self) -> int:
        """The bytes of one sample, or of one item if the column is ragged."""
        size = _TEXT_BYTES if self.is_text else self.dtype.itemsize
        return size * int(np.prod(self.shape, dtype=np.int64))

    def to_json(self) -> dict[str, Any]:
        """The column's description, for files that travel without the manifest."""
        known: dict[str, Any] = {
            "name": self.key,
            "path": self.path,
            "role": self.group.removesuffix("s"),
            "kind": self.field.kind,
            "dtype": "text" if self.is_text else self.dtype.str,
            "shape": ["*", *self.shape] if self.ragged else list(self.shape),
        }
        names = ("units", "description", "layout", "axes", "channels")
        known |= {name: getattr(self.field, name) for name in names if getattr(self.field, name)}
        return known | ({} if self.field.finite else {"finite": False})


class View:
    """Chosen columns of chosen samples of a data set."""

    def __init__(self, ens: Ensemble, names: Sequence[str] | None = None, split: str | None = None) -> None:
        self.ens = ens
        self.split = split
        self.columns = choose_columns(ens.manifest, names)
        self._chosen = ens if split is None else ens.take(_split(ens, split))
        self.num = len(self._chosen)

    @property
    def row(self) -> ExportColumn:
        """The column of row numbers, which name samples: they are unique, and ascend."""
        return self.columns[-1]

    @property
    def sample_id(self) -> ExportColumn:
        return self.columns[-2]

    def column(self, key: str) -> ExportColumn:
        return next(column for column in self.columns if column.key == key)

    def read(self, column: ExportColumn, lo: int, hi: int) -> Values:
        """The values of positions [lo, hi); views of mapped files where possible."""
        found = self._chosen.column_at(column.path)[lo:hi]
        if not column.ragged:
            return np.asarray(found)
        return Ragged(found.items, found.offsets - found.offsets[0])

    def lengths(self, column: ExportColumn, lo: int, hi: int) -> Array:
        """The number of items of each position [lo, hi) of a ragged column."""
        return np.asarray(self._chosen.column_at(column.path).lengths[lo:hi])

    def blocks(
        self, lo: int, hi: int, columns: Sequence[ExportColumn] | None = None
    ) -> Iterator[tuple[int, Block]]:
        """(first position, block) for consecutive blocks of [lo, hi), each of about `BLOCK_BYTES` at most."""
        wanted = self.columns if columns is None else columns
        for start, end in self._cut(lo, hi, wanted):
            yield start, {column.key: self.read(column, start, end) for column in wanted}

    def _cut(self, lo: int, hi: int, columns: Sequence[ExportColumn]) -> Iterator[tuple[int, int]]:
        """Ranges of samples with at most as many bytes as a block, or of one sample if that has more."""
        fixed = sum(column.item_bytes for column in columns if not column.ragged)
        ragged = [column for column in columns if column.ragged]
        step = max(1, min(_MAX_ROWS, BLOCK_BYTES // max(1, fixed)))
        for start in range(lo, hi, step):
            end = min(start + step, hi)
            if not ragged:
                yield start, end
                continue
            sizes = np.full(end - start, fixed, dtype=np.int64)
            for column in ragged:
                sizes += self.lengths(column, start, end) * column.item_bytes
            for a, b in stretches_of(sizes, BLOCK_BYTES):
                yield start + a, start + b


def _split(ens: Ensemble, name: str) -> Array:
    if name not in ens.splits:
        known = ", ".join(ens.splits) or "none"
        raise UsageError(f"{ens.path} has no split '{name}'; it has: {known}")
    return ens.splits[name]


def choose_columns(data: DataSet, names: Sequence[str] | None) -> tuple[ExportColumn, ...]:
    """The fields of these names (all by default; a graph's name stands for its members), and all inputs,
    parameters, sample ids and row numbers. Raises UsageError for a name that does not exist."""
    _require_fields(data, names)
    chosen: dict[str, ExportColumn] = {}
    for column in columns_of(data):
        is_field = column.group == "fields"
        if is_field and names is not None and not {column.name, column.graph} & set(names):
            continue
        is_taken = not is_field and (column.name in chosen or column.name in _IDS)
        key = column.path if is_taken else column.name
        if column.group == "ids":
            key = f"{'id/' * (column.name in chosen)}{column.name}"
        chosen[key] = ExportColumn(key=key, **asdict(column))
    return tuple(chosen.values())


def _require_fields(data: DataSet, names: Sequence[str] | None) -> None:
    graphs = {field.graph for field in data.fields if field.graph}
    unknown = [name for name in names or () if name not in graphs | {field.name for field in data.fields}]
    if unknown:
        known = ", ".join([*(field.name for field in data.fields), *sorted(graphs)])
        raise UsageError(f"{data.directory} has no field '{unknown[0]}'; there are: {known}")
