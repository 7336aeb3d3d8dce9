"""The columns of a data set that are one number or text for each sample, as a table."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from merlin.base.document.findings import did_you_mean
from merlin.base.files import replacing
from merlin.base.tables.parquet import load_pyarrow
from merlin.errors import MissingExtraError, UsageError
from merlin.shards.format.manifest_file import DataSet
from merlin.shards.format.segments import Array
from merlin.shards.format.splits import split_indices
from merlin.shards.reading.reader import SampleReader

if TYPE_CHECKING:
    from pandas import DataFrame

_EXACT = 2**53  # up to this, every whole number is a float

ID_COLUMNS = ("row", "sample_id", "split")  # of every sample
PLANNED_COLUMNS = ("index", "source", "task", "outcome", "cause")  # of every planned row, in SQL


class ResultTable(Struct, frozen=True, kw_only=True):
    """The answer to a query."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]  # Python values

    def __len__(self) -> int:
        return len(self.rows)

    def to_pandas(self) -> DataFrame:
        """The answer as a data frame; whole numbers beside nulls stay such if floats would change them."""
        pandas = _pandas()
        frame = pandas.DataFrame(self.rows, columns=list(self.columns))
        for i, dtype in enumerate(frame.dtypes):
            values = [row[i] for row in self.rows] if dtype.kind in "fO" else []
            if set(map(type, values)) == {int, type(None)} and max(abs(v or 0) for v in values) > _EXACT:
                frame.isetitem(i, pandas.array(values, _nullable(values)))
        return frame

    def first(self, num: int | None) -> ResultTable:
        """The first `num` rows; None: all."""
        return ResultTable(columns=self.columns, rows=self.rows[:num])

    def write(self, path: Path) -> None:
        """Write it as .csv or .parquet, or the sample ids alone as .txt, one a line.

        Raises UsageError for another suffix, or for .txt without a column sample_id.
        """
        writers = {".csv": self._write_csv, ".parquet": self._write_parquet, ".txt": self._write_ids}
        if path.suffix not in writers:
            raise UsageError(f"{path}: a table is written as {', '.join(writers)}")
        with replacing(path) as temporary:
            writers[path.suffix](temporary)

    def _write_csv(self, path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(self.rows)

    def _write_parquet(self, path: Path) -> None:
        pyarrow = load_pyarrow("a table as .parquet")
        columns = [list(column) for column in zip(*self.rows, strict=True)] or [[] for _ in self.columns]
        arrays = [_arrow(pyarrow, name, values) for name, values in zip(self.columns, columns, strict=True)]
        table = pyarrow.table(arrays, names=list(self.columns))
        pyarrow.parquet.write_table(table, path)

    def _write_ids(self, path: Path) -> None:
        if "sample_id" not in self.columns:
            raise UsageError("sample ids cannot be written: the answer has no column sample_id")
        at = self.columns.index("sample_id")
        path.write_text("".join(f"{row[at]}\n" for row in self.rows), encoding="utf-8")


def _arrow(pyarrow: Any, name: str, values: list[Any]) -> Any:
    """Values of a column as an Arrow array; UsageError if they have no type in common."""
    for kind in (None, pyarrow.uint64(), pyarrow.decimal128(38)):  # None: the one that fits, up to int64
        with suppress(OverflowError, pyarrow.ArrowException):
            return pyarrow.array(values, kind)
    raise UsageError(f"column '{name}' cannot be written as .parquet; ask for cast({name} as varchar)")


def _nullable(values: Iterable[int | None]) -> str:
    """The type of pandas that holds these numbers and nulls."""
    numbers = [value for value in values if value is not None]
    low, high = min(numbers), max(numbers)
    if low >= -(2**63) and high < 2**63:
        return "Int64"
    return "UInt64" if low >= 0 and high < 2**64 else "object"


def table_columns(data: DataSet) -> dict[str, str]:
    """Paths by name: parameters, inputs, scalar fields and texts, what is known of how they came to be.

    A name that several columns have, apart from upper and lower case, gets their kinds before it: `field_x`,
    `input_x`, `param_N`. A name that is no other column's stays, and the names with a kind before them give way
    to it. What is known of how they came to be gives way to the others.
    """
    groups = _named_by_users(data)
    taken = {*ID_COLUMNS, *PLANNED_COLUMNS} | _shared(groups)
    used = taken | {name.lower() for group in groups.values() for name, _ in group}
    named = {prefix: _free_names(group, prefix, taken, used) for prefix, group in groups.items()}
    known = [(c.name, c.path) for c in data.columns if c.path.startswith("provenance/")]
    named["provenance_"] = _free_names(known, "provenance_", used, used)
    return named["param_"] | named["input_"] | named["field_"] | named["provenance_"]


def ambiguous_names(data: DataSet) -> dict[str, list[str]]:
    """The names in lower case that several columns share, each with the names that these have instead."""
    groups = _named_by_users(data)
    own = {path: name.lower() for group in groups.values() for name, path in group}
    found: dict[str, list[str]] = {name: [] for name in sorted(_shared(groups))}
    for name, path in table_columns(data).items():
        if own.get(path) in found:
            found[own[path]].append(name)
    return found


def unknown_column(reader: SampleReader, name: str, known: Iterable[str]) -> UsageError:
    """Why there is no column `name`, and which may be meant."""
    known = list(known)
    several = ambiguous_names(reader.manifest).get(name.lower(), [])
    several = [one for one in several if one in known] or several
    if several:
        return UsageError(f"'{name}' is ambiguous in {reader.path}: write {' or '.join(several)}")
    for field, held in array_fields(reader.manifest).items():
        if field.lower() == name.lower():
            return UsageError(
                f"'{field}' in {reader.path} has {held} for each sample, and a table has one value: choose samples in "
                f"Python, from ens['{field}'][:], or collect a field that is derived from it (expression: max(…))"
            )
    return UsageError(f"no column '{name}' in {reader.path}{_suggestion(name, known)}")


def array_fields(data: DataSet) -> dict[str, str]:
    """What a sample has of the fields that are no columns of tables, and of graphs, by name: "6×5×2 values"."""
    found = {field.graph: "a graph" for field in data.fields if field.graph}
    for field in data.fields:
        if field.ragged:
            found[field.name] = "any number of values"
        elif field.shape:
            found[field.name] = f"{'×'.join(map(str, field.shape))} values"
    return found


def _named_by_users(data: DataSet) -> dict[str, list[tuple[str, str]]]:
    """Names and paths of the columns that a spec names, by the prefix of their kind."""
    return {
        "field_": [(f.name, f.path) for f in data.fields if not f.shape and not f.ragged],
        "input_": [(c.name, c.path) for c in data.inputs],
        "param_": [(c.name, c.path) for c in data.parameters],
    }


def _shared(groups: Mapping[str, Sequence[tuple[str, str]]]) -> set[str]:
    counts = Counter(name.lower() for group in groups.values() for name, _ in group)
    return {name for name, num in counts.items() if num > 1}


def complex_columns(data: DataSet) -> dict[str, str]:
    """The stored names, by the names here, of the columns with complex numbers, which SQL does not know."""
    are_complex = {column.path for column in data.columns if column.dtype[1:2] == "c"}
    stored = {path: name for group in _named_by_users(data).values() for name, path in group}
    return {name: stored[path] for name, path in table_columns(data).items() if path in are_complex}


def usual_columns(data: DataSet) -> list[str]:
    """What a table shows of each sample if nothing else is asked for."""
    known = table_columns(data).items()
    return [*ID_COLUMNS, *(name for name, path in known if not path.startswith("provenance/"))]


def _free_names(
    columns: Iterable[tuple[str, str]], prefix: str, taken: set[str], used: set[str]
) -> dict[str, str]:
    """Paths by name; a name that is `taken` gets the prefix until it is none of those `used`, which grow."""
    found = {}
    for name, path in columns:
        if name.lower() in taken:
            while name.lower() in used:
                name = prefix + name
        used.add(name.lower())
        found[name] = path
    return found


def split_codes(data: DataSet, sample_ids: Array) -> tuple[Array, list[str]]:
    """Index of each sample's split (-1: none) into the splits' names."""
    names = list(data.splits.fractions)
    member = split_indices(sample_ids, data.splits.fractions, data.splits.seed)
    return np.where(member < len(names), member, -1).astype(np.int16), names


def _suggestion(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'yield'?", or "; there are: …" if nothing is close."""
    listed = list(known)
    more = f" and {len(listed) - 40} more" if len(listed) > 40 else ""
    listing = f"there are: {', '.join(listed[:40])}{more}"
    return f"; {did_you_mean(name, listed) or listing}"


def column_values(reader: SampleReader, names: Sequence[str]) -> dict[str, Array]:
    """Values of columns by name (n,), as NumPy's native numbers or as str. Raises UsageError for a name that is
    no column."""
    known: Mapping[str, str] = table_columns(reader.manifest)
    for name in names:
        if name not in ("row", "sample_id", *known):
            every = [*ID_COLUMNS, *known]
            raise unknown_column(reader, name, every)
    paths = {name: known.get(name, name) for name in names}
    reader.prepare(list(paths.values()))
    found: dict[str, Array] = {}
    for name, path in paths.items():
        values = np.asarray(reader.column_at(path)[:])
        found[name] = values if values.dtype.kind == "O" else values.astype(values.dtype.newbyteorder("="))
    return found


def data_frame(reader: SampleReader, columns: Sequence[str] | None) -> DataFrame:
    """See `merlin.shards.ensemble.Ensemble.to_pandas`."""
    pandas = _pandas()
    columns = usual_columns(reader.manifest) if columns is None else columns
    values: dict[str, Any] = dict(column_values(reader, [name for name in columns if name != "split"]))
    if "split" in columns:
        codes, names = split_codes(reader.manifest, reader.sample_id)
        values["split"] = pandas.Categorical.from_codes(codes, names)
    return pandas.DataFrame({name: values[name] for name in columns})


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as e:
        raise MissingExtraError("pandas", "pandas", "a table as a data frame") from e
    return pandas
