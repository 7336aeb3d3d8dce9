"""Inputs from a file, block by block: columns found by name, or by their order where the file has no names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from merlin.errors import UsageError
from merlin.shards.importing.sources import SUFFIXES, SourceFile, open_source
from merlin.train.results.surrogate import require_columns

Array = np.ndarray[Any, Any]

WHOLE = "inputs"  # the name of a matrix (n, d) in an .npz or HDF5 file


class SamplesFile:
    """The samples of a CSV, TSV, .npy, .npz, Parquet or HDF5 file; `note` says what was taken for granted.

    Raises UsageError if the file is of another kind, empty, or lacks columns; ShardError if it is damaged.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        if path.suffix.lower() not in SUFFIXES:
            raise UsageError(f"{path}: samples are read from {', '.join(SUFFIXES)}")
        self.path = path
        self.names = tuple(names)
        self.note = ""
        self._source: SourceFile = open_source(path, "rows", None)
        self._matrix = ""  # the key of a matrix, if there is one
        self._keys = self._find()
        sizes = {key: self._source.facts(key).num for key in self._keys}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{key} {num:,}" for key, num in sizes.items())
            raise UsageError(f"{path}: columns differ in length: {listed}")
        self.num = next(iter(sizes.values()))
        if not self.num:
            raise UsageError(f"{path} holds no samples")

    def _find(self) -> tuple[str, ...]:
        """The key of each input, or that of the matrix of all of them."""
        keys = self._source.names()
        if not keys or self.path.suffix.lower() == ".npy":
            return (self._as_matrix(self.path.stem),)
        known: dict[str, str] = {}
        for key in keys:
            known.setdefault(_plain(key), key)
        if all(key.isdigit() for key in keys):  # a table without titles
            return self._by_order(keys)
        if not set(self.names) & set(known) and WHOLE in known:
            return (self._as_matrix(known[WHOLE]),)
        require_columns(self.names, list(known), str(self.path))
        return tuple(known[name] for name in self.names)

    def _as_matrix(self, key: str) -> str:
        facts = self._source.facts(key)
        if facts.shape != (len(self.names),) or facts.is_text:
            raise UsageError(
                f"{self.path}: expected numbers of shape (samples, {len(self.names)}), the columns "
                f"{', '.join(self.names)}; found {facts.dtype} of shape {(facts.num, *facts.shape)}"
            )
        self._matrix = key
        self._say_order()
        return key

    def _by_order(self, keys: Sequence[str]) -> tuple[str, ...]:
        if len(keys) != len(self.names):
            raise UsageError(
                f"{self.path} has no line of titles, and {len(keys)} columns instead of the {len(self.names)} inputs "
                f"{', '.join(self.names)}"
            )
        self._say_order()
        return tuple(keys)

    def _say_order(self) -> None:
        self.note = f"{self.path} names no columns; they are taken for {', '.join(self.names)}"

    def blocks(self, size: int) -> Iterator[tuple[int, Array]]:
        """(first row, matrix (rows, d) float64) of at most `size` rows each.

        Raises UsageError for the first value that is no finite number, with its place.
        """
        for lo in range(0, self.num, size):
            hi = min(lo + size, self.num)
            self._source.expect(lo, hi)
            yield lo, self._block(lo, hi)

    def _block(self, lo: int, hi: int) -> Array:
        columns = [self._column(key, lo, hi) for key in self._keys]
        x = columns[0] if self._matrix else np.stack(columns, axis=1)
        bad = np.argwhere(~np.isfinite(x))
        if len(bad):
            row, column = bad[0].tolist()
            place = self._source.place(self._keys[0 if self._matrix else column], lo + row)
            which = f", '{self.names[column]}'" if self._matrix else ""
            raise UsageError(f"{place}{which}: {x[row, column]} is no finite number")
        return np.asarray(x)

    def _column(self, key: str, lo: int, hi: int) -> Array:
        facts = self._source.facts(key)
        if facts.is_text or facts.ragged:
            raise UsageError(f"{self.path}: the column '{key}' holds no numbers")
        for row, why in self._source.problems(key, lo, hi, facts).items():
            raise UsageError(f"{self._source.place(key, row)}: {why}")
        return np.asarray(self._source.read(key, lo, hi, facts), np.float64)

    def close(self) -> None:
        self._source.close()


def _plain(key: str) -> str:
    """The name that a column goes by: "inputs/x" and "# x" are x."""
    return key.rpartition("/")[2].lstrip("# ").strip()
