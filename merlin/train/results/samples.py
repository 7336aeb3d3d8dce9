"""Samples to predict, block by block: of a file, where columns are found by name, or by their order where the file has
no names; or of a data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from merlin.errors import ShardError, UsageError
from merlin.shards.importing.sources import SUFFIXES, Facts, SourceFile, open_source
from merlin.shards.reading.reader import Ensemble, open_shards
from merlin.train.data import find_data_set
from merlin.train.loading.columns import Column, Columns
from merlin.train.results.given import Place, find_columns, require_finite
from merlin.train.results.surrogate import require_columns

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

WHOLE = "inputs"  # the name of a matrix (n, d) in an .npz or HDF5 file


class Samples(Protocol):
    """What a model is to predict; `note` says what was taken for granted."""

    num: int
    note: str

    def blocks(self, size: int) -> Iterator[tuple[int, Array]]:
        """(first row, matrix (rows, d) float64) of at most `size` rows each."""
        ...

    def images(self, lo: int, hi: int) -> list[Array]:
        """Of samples [lo, hi), (rows, *shape) float32 each."""
        ...

    def close(self) -> None: ...


def open_samples(path: Path, names: Sequence[str], images: Mapping[str, Shape]) -> Samples:
    """A data set if there is one at `path`, else a file. Raises as these."""
    if path.is_dir():
        return DataSetSamples(path, names, images)
    return SamplesFile(path, names, images)


class SamplesFile:
    """The samples of a CSV, TSV, .npy, .npz, Parquet or HDF5 file.

    Columns called z0, z1, … are found in a matrix z, too. Raises UsageError if the file is of another kind, empty, or
    lacks columns or images; ShardError if it is damaged.
    """

    def __init__(self, path: Path, names: Sequence[str], images: Mapping[str, Shape] | None = None) -> None:
        if path.suffix.lower() not in SUFFIXES:
            raise UsageError(f"{path}: samples are read from {', '.join(SUFFIXES)}, or from a data set")
        self.path = path
        self.names = tuple(names)
        self.note = ""
        self._source: SourceFile = open_source(path, "rows", None)
        self._matrix = ""  # the key of a matrix, if there is one
        self._keys = self._find() if self.names else ()
        self._images = self._find_images(images or {})
        keys = [*(key for key, _ in self._keys), *self._images]
        sizes = {key: self._source.facts(key).num for key in keys}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{key} {num:,}" for key, num in sizes.items())
            raise UsageError(f"{path}: columns differ in length: {listed}")
        self.num = next(iter(sizes.values()))
        if not self.num:
            raise UsageError(f"{path} holds no samples")

    def _find(self) -> tuple[Place, ...]:
        """The place of each input, or that of the matrix of all of them."""
        keys = self._source.names()
        if not keys or self.path.suffix.lower() == ".npy":
            return (self._as_matrix(self.path.stem),)
        known = self._known()
        if all(key.isdigit() for key in keys):  # a table without titles
            return self._by_order(keys)
        places = self._places(known)
        if not places and WHOLE in known:
            return (self._as_matrix(known[WHOLE]),)
        require_columns(self.names, [*known, *places], str(self.path))
        return tuple((known[key], number) for key, number in (places[name] for name in self.names))

    def _known(self) -> dict[str, str]:
        """Keys by the names that columns go by."""
        known: dict[str, str] = {}
        for key in self._source.names():
            known.setdefault(_plain(key), key)
        return known

    def _places(self, known: Mapping[str, str]) -> dict[str, Place]:
        """Of the inputs that are there; the file is asked for shapes only if some have no column of their own."""
        is_complete = set(self.names) <= set(known)
        shapes = {name: () if is_complete else self._shape(key) for name, key in known.items()}
        return find_columns(self.names, shapes, str(self.path))

    def _shape(self, key: str) -> Shape:
        """Of a sample; that of a number for what is of no use."""
        try:
            facts = self._source.facts(key)
        except ShardError:
            return ()
        return () if facts.is_text or facts.ragged else facts.shape

    def _as_matrix(self, key: str) -> Place:
        facts = self._source.facts(key)
        if facts.shape != (len(self.names),) or facts.is_text:
            raise UsageError(
                f"{self.path}: expected numbers of shape (samples, {len(self.names)}), the columns "
                f"{', '.join(self.names)}; found {facts.dtype} of shape {(facts.num, *facts.shape)}"
            )
        self._matrix = key
        self._say_order()
        return key, None

    def _by_order(self, keys: Sequence[str]) -> tuple[Place, ...]:
        if len(keys) != len(self.names):
            raise UsageError(
                f"{self.path} has no line of titles, and {len(keys)} columns instead of the {len(self.names)} inputs "
                f"{', '.join(self.names)}"
            )
        self._say_order()
        return tuple((key, None) for key in keys)

    def _say_order(self) -> None:
        self.note = f"{self.path} names no columns; they are taken for {', '.join(self.names)}"

    def _find_images(self, images: Mapping[str, Shape]) -> dict[str, Shape]:
        """Shapes by key; a .npy is the only image, or none."""
        if not images:
            return {}
        is_single = self.path.suffix.lower() == ".npy" and not self.names and len(images) == 1
        known = dict.fromkeys(images, self.path.stem) if is_single else self._known()
        require_columns(tuple(images), list(known), str(self.path))
        for name, shape in images.items():
            facts = self._source.facts(known[name])
            if facts.shape != shape or facts.is_text or facts.ragged:
                raise UsageError(
                    f"{self.path}: expected '{name}' of shape (samples, {', '.join(map(str, shape))}), "
                    f"found {facts.dtype} of shape {(facts.num, *facts.shape)}"
                )
        return {known[name]: shape for name, shape in images.items()}

    def blocks(self, size: int) -> Iterator[tuple[int, Array]]:
        """(first row, matrix (rows, d) float64) of at most `size` rows each.

        Raises UsageError for the first value that is no finite number, with its place.
        """
        for lo in range(0, self.num, size):
            hi = min(lo + size, self.num)
            self._source.expect(lo, hi)
            yield lo, self._block(lo, hi)

    def _block(self, lo: int, hi: int) -> Array:
        if not self._keys:
            return np.zeros((hi - lo, 0))
        read = {key: self._column(key, lo, hi) for key in dict(self._keys)}
        if self._matrix:
            x = read[self._matrix]
        else:
            x = np.stack([read[key] if i is None else read[key][:, i] for key, i in self._keys], axis=1)
        bad = np.argwhere(~np.isfinite(x))
        if len(bad):
            row, column = bad[0].tolist()
            key, number = self._keys[0 if self._matrix else column]
            place = self._source.place(key, lo + row)
            which = f", '{self.names[column]}'" if self._matrix or number is not None else ""
            raise UsageError(f"{place}{which}: {x[row, column]} is no finite number")
        return np.asarray(x)

    def _column(self, key: str, lo: int, hi: int) -> Array:
        facts = self._source.facts(key)
        if facts.is_text or facts.ragged:
            raise UsageError(f"{self.path}: the column '{key}' holds no numbers")
        self._refuse_problems(key, lo, hi, facts)
        return np.asarray(self._source.read(key, lo, hi, facts), np.float64)

    def _refuse_problems(self, key: str, lo: int, hi: int, facts: Facts) -> None:
        for row, why in self._source.problems(key, lo, hi, facts).items():
            raise UsageError(f"{self._source.place(key, row)}: {why}")

    def images(self, lo: int, hi: int) -> list[Array]:
        """Of samples [lo, hi), (rows, *shape) float32 each."""
        found = []
        for key in self._images:
            facts = self._source.facts(key)
            self._refuse_problems(key, lo, hi, facts)
            values = np.asarray(self._source.read(key, lo, hi, facts), np.float32)
            require_finite(values, f"{self.path}, from row {lo} on", _plain(key))
            found.append(values)
        return found

    def close(self) -> None:
        self._source.close()


class DataSetSamples:
    """All samples of a data set, in the order of its rows.

    Raises NotADataSetError if there is none, UsageError if it lacks inputs or images of the model.
    """

    def __init__(self, path: Path, names: Sequence[str], images: Mapping[str, Shape]) -> None:
        self._ens: Ensemble = open_shards(find_data_set(path))
        self.note, self.num = "", len(self._ens)
        columns = Columns(self._ens)
        known = {**columns.fields, **columns.parameters, **columns.inputs}
        usable = {
            name: column.shape
            for name, column in known.items()
            if not (column.is_text or column.is_complex or column.ragged)
        }
        places = find_columns(names, usable, str(self._ens.path))
        require_columns(names, [*usable, *places], str(self._ens.path))
        require_columns(tuple(images), list(usable), str(self._ens.path))
        for name, shape in images.items():
            if usable[name] != shape:
                raise UsageError(
                    f"{self._ens.path}: '{name}' has shape {usable[name]}, the model's has {shape}"
                )
        self._places: list[tuple[Column, int | None]] = [
            (known[key], number) for key, number in places.values()
        ]
        self._images = [columns.fields[name] for name in images]

    def blocks(self, size: int) -> Iterator[tuple[int, Array]]:
        """(first row, matrix (rows, d) float64) of at most `size` rows each; UsageError if it is not finite."""
        for lo in range(0, self.num, size):
            rows = np.arange(lo, min(lo + size, self.num))
            yield lo, self._block(rows)

    def _block(self, rows: Array) -> Array:
        x = np.zeros((len(rows), len(self._places)))
        for i, (column, number) in enumerate(self._places):
            values = column.read(self._ens, rows)
            x[:, i] = values if number is None else values[:, number]
            require_finite(x[:, i], f"{self._ens.path}, from row {rows[0]} on", column.name)
        return x

    def images(self, lo: int, hi: int) -> list[Array]:
        """Of rows [lo, hi), (rows, *shape) float32 each."""
        found = []
        for column in self._images:
            values = np.asarray(column.read(self._ens, np.arange(lo, hi)), np.float32)
            require_finite(values, f"{self._ens.path}, from row {lo} on", column.name)
            found.append(values)
        return found

    def close(self) -> None:
        self._ens.close()


def _plain(key: str) -> str:
    """The name that a column goes by: "inputs/x" and "# x" are x."""
    return key.rpartition("/")[2].lstrip("# ").strip()
