"""Samples to predict, block by block: of a file, where columns are found by name, or by their order where the file has
no names; or of a data set."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from merlin.errors import ShardError, UsageError
from merlin.shards.ensemble import open_shards
from merlin.shards.format.segments import Array
from merlin.shards.importing.source_file import Facts
from merlin.shards.importing.sources import SUFFIXES, open_source
from merlin.train.loading.columns import Columns
from merlin.train.results.given import Place, find_columns, require_columns

Shape = tuple[int, ...]

WHOLE = "inputs"  # the name of a matrix (n, d) in an .npz or HDF5 file


class _File:
    """A CSV, TSV, .npy, .npz, Parquet or HDF5 file; the names of "inputs/x" and "# x" are x.

    Of columns with one name, that of an input counts, then that of a parameter; for `fields`, that of a field. Unless
    it `is_titled`, its columns are those of the model, in its order.
    """

    def __init__(self, path: Path, fields: Collection[str]) -> None:
        if path.suffix.lower() not in SUFFIXES:
            raise UsageError(f"{path}: samples are read from {', '.join(SUFFIXES)}, or from a data set")
        self.path = path
        self._source = open_source(path, "rows", None)
        keys = self._source.names()
        self.is_titled = path.suffix.lower() != ".npy" and not all(key.isdigit() for key in keys)
        self.names = list(dict.fromkeys(map(_plain, keys)))
        by_rank = sorted(keys, key=lambda key: _rank(key, fields))
        self._keys = {_plain(key): key for key in reversed(by_rank)}  # the first of a name counts
        self._expected = 0, 0  # the rows that the file was asked for last

    def shape(self, name: str) -> Shape | None:
        """The shape of a sample of a column; None for what holds no real numbers."""
        try:
            facts = self._source.facts(self._keys[name])
        except ShardError:
            return None
        return facts.shape if _is_real(facts) else None

    def num(self, name: str) -> int:
        """The number of samples of a column."""
        return self._source.facts(self._keys[name]).num

    def read(self, name: str, lo: int, hi: int, dtype: Any) -> Array:
        """Samples [lo, hi) of a column. Raises UsageError for values that are missing."""
        key = self._keys[name]
        facts = self._source.facts(key)
        if not _is_real(facts):
            raise UsageError(f"{self.path}: the column '{name}' holds {_described(None)}")
        if self._expected != (lo, hi):
            self._expected = lo, hi
            self._source.expect(lo, hi)
        for row, why in self._source.problems(key, lo, hi, facts).items():
            raise UsageError(f"{self._source.place(key, row)}: {why}")
        return np.asarray(self._source.read(key, lo, hi, facts), dtype)

    def place(self, name: str, row: int) -> str:
        """Where a value is, for people."""
        return self._source.place(self._keys[name], row)

    def close(self) -> None:
        self._source.close()


def _is_real(facts: Facts) -> bool:
    """True for numbers that a model can take."""
    return not (facts.is_text or facts.ragged or facts.dtype.kind == "c")


def _plain(key: str) -> str:
    """The name of the column that a file has under a key."""
    return key.rpartition("/")[2].lstrip("# ").strip()


def _rank(key: str, fields: Collection[str]) -> int:
    """The place of a key among those of one name."""
    group = key.partition("/")[0]
    if _plain(key) in fields:
        return int(group in ("inputs", "parameters"))
    return {"inputs": 0, "parameters": 1}.get(group, 2)


class _DataSet:
    """All samples of a data set, in the order of its rows; it answers what `_File` does."""

    is_titled = True

    def __init__(self, path: Path, fields: Collection[str]) -> None:
        self._ens = open_shards(path)
        self.path = self._ens.path
        columns = Columns(self._ens)
        self._columns = {**columns.fields, **columns.parameters, **columns.inputs}
        self._columns |= {name: columns.fields[name] for name in fields if name in columns.fields}
        self.names = [name for name in self._columns if self.shape(name) is not None]

    def shape(self, name: str) -> Shape | None:
        column = self._columns[name]
        return None if column.is_text or column.is_complex or column.ragged else column.shape

    def num(self, name: str) -> int:
        return len(self._ens)

    def read(self, name: str, lo: int, hi: int, dtype: Any) -> Array:
        return np.asarray(self._ens.column_at(self._columns[name].path)[np.arange(lo, hi)], dtype)

    def place(self, name: str, row: int) -> str:
        return f"{self.path}: row {row}, '{name}'"

    def close(self) -> None:
        self._ens.close()


def _described(shape: Shape | None) -> str:
    return (
        "no real numbers"
        if shape is None
        else f"numbers of shape ({', '.join(map(str, ('samples', *shape)))})"
    )


class SamplesReader:
    """Inputs of a model in a source; `note` says what was assumed.

    Columns called z0, z1, … are found in a matrix z, too. Raises UsageError if the source has no samples, or lacks
    columns or images.
    """

    def __init__(self, source: _File | _DataSet, names: Sequence[str], images: Mapping[str, Shape]) -> None:
        self._source, self._names = source, tuple(names)
        self.note = ""
        self._places = self._find() if names else ()
        self._images = self._find_images(images)
        sizes = {key: source.num(key) for key in (*dict(self._places), *self._images)}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{key} {num:,}" for key, num in sizes.items())
            raise UsageError(f"{source.path}: columns differ in length: {listed}")
        self.num = next(iter(sizes.values()))
        if not self.num:
            raise UsageError(f"{source.path} holds no samples")

    def _find(self) -> tuple[Place, ...]:
        """The place of each input."""
        source, where = self._source, str(self._source.path)
        if not source.is_titled:
            return self._by_order(source.names)
        is_complete = set(self._names) <= set(source.names)  # then nothing is asked for its shape
        shapes = {name: () if is_complete else source.shape(name) or () for name in source.names}
        places = find_columns(self._names, shapes, where)
        if not places and WHOLE in source.names:
            return self._by_order([WHOLE])
        require_columns(self._names, [*source.names, *places], where)
        return tuple(places[name] for name in self._names)

    def _by_order(self, keys: Sequence[str]) -> tuple[Place, ...]:
        """The columns of a table without titles, or of a matrix."""
        path, listed = self._source.path, ", ".join(self._names)
        self.note = f"{path} names no columns; they are taken for {listed}"
        if len(keys) == len(self._names) and self._source.shape(keys[0]) == ():
            self.note += self._doubt(keys)
            return tuple((key, None) for key in keys)
        if len(keys) != 1:
            raise UsageError(
                f"{path} has no line of titles, and {len(keys)} columns instead of the {len(self._names)} "
                f"inputs {listed}"
            )
        shape = self._source.shape(keys[0])
        if shape != (len(self._names),):
            raise UsageError(
                f"{path}: expected numbers of shape (samples, {len(self._names)}), the columns {listed}; "
                f"found {_described(shape)}"
            )
        return tuple((keys[0], number) for number in range(len(self._names)))

    def _doubt(self, keys: Sequence[str]) -> str:
        """A remark if the first line of a table numbers the columns, as titles do that pandas makes up."""
        if keys[0] != "0" or any(self._source.read(key, 0, 1, np.float64)[0] != int(key) for key in keys):
            return ""
        return f"; the first line, {', '.join(keys)}, is taken for a sample: remove it if these are titles"

    def _find_images(self, images: Mapping[str, Shape]) -> tuple[str, ...]:
        """The columns of images; one that is alone in a file without names is meant by its place."""
        source = self._source
        if not source.is_titled and not self._names and len(images) == 1:
            keys = tuple(source.names)
        else:
            require_columns(tuple(images), list(source.names), str(source.path))
            keys = tuple(images)
        for key, (name, shape) in zip(keys, images.items(), strict=True):
            if source.shape(key) != shape:
                raise UsageError(
                    f"{source.path}: expected '{name}' of shape (samples, {', '.join(map(str, shape))}), "
                    f"found {_described(source.shape(key))}"
                )
        return keys

    def blocks(self, size: int) -> Iterator[tuple[int, list[Array]]]:
        """(first row, inputs) of at most `size` rows each: the matrix (rows, d) float64, if there are columns, and
        images (rows, *shape) float32.

        Raises UsageError for the first value that is no finite number, with its place.
        """
        for lo in range(0, self.num, size):
            hi = min(lo + size, self.num)
            images = [
                self._finite(key, lo, self._source.read(key, lo, hi, np.float32)) for key in self._images
            ]
            yield lo, [*([self._matrix(lo, hi)] if self._places else []), *images]

    def _matrix(self, lo: int, hi: int) -> Array:
        read = {key: self._source.read(key, lo, hi, np.float64) for key in dict(self._places)}
        columns = [
            self._finite(key, lo, self._column(key, number, read[key]), name)
            for name, (key, number) in zip(self._names, self._places, strict=True)
        ]
        return np.stack(columns, axis=1)

    def _column(self, key: str, number: int | None, values: Array) -> Array:
        """The numbers (rows,) of an input; a column of its own may be stored as (rows, 1)."""
        if number is not None:
            return values[:, number]
        if values.shape[1:] not in ((), (1,)):
            found = _described(values.shape[1:])
            raise UsageError(f"{self._source.path}: expected one number per sample of '{key}', found {found}")
        return values.reshape(-1)

    def _finite(self, key: str, lo: int, values: Array, name: str = "") -> Array:
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            row, *rest = bad[0].tolist()
            value = values[(row, *rest)]
            raise UsageError(f"{self._place(key, lo + row, name)}: {value} is no finite number")
        return values

    def place(self, row: int, number: int) -> str:
        """Where the value of an input in the matrix's column `number` is, for people."""
        return self._place(self._places[number][0], row, self._names[number])

    def _place(self, key: str, row: int, name: str) -> str:
        return self._source.place(key, row) + (f", '{name}'" if name not in ("", key) else "")

    def close(self) -> None:
        self._source.close()


def open_samples(
    path: Path, names: Sequence[str], images: Mapping[str, Shape], fields: Collection[str] = ()
) -> SamplesReader:
    """The samples of a data set if `path` is a directory, else those of a file.

    `fields` are those inputs of the model that were fields of its data set; the source may have inputs of these names.

    Raises as `SamplesReader`; NotADataSetError if there is no data set, UsageError for a file of an unknown kind,
    ShardError for a damaged one.
    """
    return SamplesReader((_DataSet if path.is_dir() else _File)(path, fields), names, images)
