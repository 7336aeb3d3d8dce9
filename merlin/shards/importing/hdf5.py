"""HDF5 files: rows of data sets, or one group for each sample as Conduit writes them.

Nothing outside of a file is read, whatever its links, external storage or virtual data sets name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from merlin.base.records import parsed
from merlin.errors import ShardError, UsageError
from merlin.shards.format.foreign_hdf5 import ForeignFile
from merlin.shards.format.segments import Ragged, Values
from merlin.shards.importing.source_file import (
    Facts,
    SourceFile,
    as_text,
    list_some,
    plain_about,
    with_ragged,
)
from merlin.shards.writing.check import castable


class _Hdf5Source(SourceFile):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file = _open(path)

    def close(self) -> None:
        self._file.close()


class RowsFile(_Hdf5Source):
    """Data sets whose first axis counts samples.

    Ragged: a group of ``values`` and ``offsets``, a data set that another one cuts, or variable-length rows.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._known: dict[str, Any] = {}  # data sets by their paths

    def names(self) -> list[str]:
        with _explaining(self.path):
            found = self._file.datasets()
            found += [n for n in self._file.names() if n not in found and self._file.is_outside(n)]
        return [name for name in with_ragged(found, "/") if name not in found or not self._is_single(name)]

    def _is_single(self, name: str) -> bool:
        if self._file.is_outside(name):
            return False  # reading it raises an error that says why
        node = self._file.dataset(name)
        return node is None or not node.shape

    def has(self, key: str) -> bool:
        with _explaining(self.path):
            return self._file.find(key) is not None

    def _pair(self, key: str, offsets: str | None) -> tuple[str, str] | None:
        if offsets is None and self._find(f"{key}/values") and self._find(f"{key}/offsets"):
            return f"{key}/values", f"{key}/offsets"
        return super()._pair(key, offsets)

    def _facts(self, key: str) -> Facts:
        dataset = self._dataset(key)
        if not dataset.shape:
            raise ShardError(f"{self.path}: '{key}' is a single value; a column has one for each sample")
        found = _dtype(f"{self.path}: '{key}'", dataset)
        with _explaining(self.path, key):
            ragged = found.kind != "O" and h5py.check_vlen_dtype(dataset.dtype) is not None
        return Facts(dataset.shape[0], found, dataset.shape[1:], ragged)

    def _read(self, key: str, lo: int, hi: int, facts: Facts) -> Values:
        dataset = self._dataset(key)
        with _explaining(self.path, key):
            if facts.ragged:
                return Ragged.of(dataset[lo:hi], facts.dtype, ())
            if facts.is_text and h5py.check_string_dtype(dataset.dtype) is not None:
                return as_text(dataset.asstr()[lo:hi])
            return as_text(dataset[lo:hi]) if facts.is_text else np.asarray(dataset[lo:hi])

    def _dataset(self, key: str) -> Any:
        found = self._find(key)
        if found is None:
            raise ShardError(f"{self.path}: '{key}' is no data set; there are: {list_some(self.names())}")
        return found

    def _find(self, key: str) -> Any:
        """The data set at a path, None if there is none."""
        if key not in self._known:
            with _explaining(self.path):
                self._known[key] = self._file.dataset(key)
        return self._known[key]

    def about(self, key: str) -> dict[str, Any]:
        with _explaining(self.path, key):
            values = self._file.dataset(f"{key}/values")
            attributes = ({} if values is None else dict(values.attrs)) | dict(self._file.find(key).attrs)
            made = str(self._file.attrs.get("format", ""))
        found: dict[str, Any] = {}
        for name in ("kind", "units", "description", "layout", "axes", "channels"):
            value = attributes.get(name)
            if isinstance(value, str | bytes) and value:
                text = as_text([value])[0]
                found[name] = _parsed_list(text) if name in ("axes", "channels") else text
        if key in ("sample_id", "row") and made.startswith("merlin-"):
            found["role"] = "id"
        is_any = isinstance(attributes.get("finite"), bool | np.bool_) and not attributes["finite"]
        return plain_about(found | ({"finite": False} if is_any else {}))


class GroupsFile(_Hdf5Source):
    """Each group of the file is a sample, in the order of their names; data sets inside have equal names."""

    has_untyped_columns = True  # each sample has a type of its own

    def __init__(self, path: Path, success: str | None = None) -> None:
        super().__init__(path)
        self._success = success
        self._known: dict[str, str] = {}  # why a sample failed, of those looked at; "" if it did not
        with _explaining(path):
            self._samples = [name for name in self._file.names() if self._file.is_group(name)]
            if not self._samples:
                raise ShardError(f"{path} holds no groups, which would be its samples")
            if success and not any(self._file.find(f"{name}/{success}") for name in self._samples):
                raise UsageError(f"success: no sample of {path} has a data set '{success}'")
            self._first = next((name for name in self._samples if not self._failure(name)), self._samples[0])

    def _failure(self, name: str) -> str:
        """Why a sample failed; "" if it did not."""
        if self._success is not None and name not in self._known:
            node = self._file.dataset(f"{name}/{self._success}")
            if node is None:
                self._known[name] = f"there is no {self._success}"
            else:
                self._known[name] = "" if np.asarray(node[()]).all() else f"{self._success} is 0"
        return self._known.get(name, "")

    def failures(self, lo: int, hi: int) -> dict[int, str]:
        if self._success is None:
            return {}
        with _explaining(self.path):
            found = {row: self._failure(self._samples[row]) for row in range(lo, hi)}
        return {row: why for row, why in found.items() if why}

    def names(self) -> list[str]:
        with _explaining(self.path):
            return [name for name in self._file.datasets(self._first) if name != self._success]

    def has(self, key: str) -> bool:
        with _explaining(self.path):
            return self._file.find(f"{self._first}/{key}") is not None

    def _facts(self, key: str) -> Facts:
        with _explaining(self.path):
            dataset = self._file.dataset(f"{self._first}/{key}")
        if dataset is None or dataset.shape is None:
            raise ShardError(f"{self.path}: '{self._first}/{key}' is no data set with values")
        dtype = _dtype(f"{self.path}: '{self._first}/{key}'", dataset)
        shape = () if dtype.kind == "O" or dataset.shape == (1,) else dataset.shape
        return Facts(len(self._samples), dtype, shape)

    def _read(self, key: str, lo: int, hi: int, facts: Facts) -> Values:
        """Read samples; those that `problems` reports become zero, or empty text."""
        with _explaining(self.path, key):
            rows = [self._value(self._samples[i], key, facts) for i in range(lo, hi)]
            if facts.is_text:
                return as_text("" if row is None else row for row in rows)
            dtypes = {row.dtype for row in rows if row is not None} or {facts.dtype}
            out = np.zeros((hi - lo, *facts.shape), np.result_type(*dtypes))
            for i, row in enumerate(rows):
                if row is not None:
                    out[i] = row
            return out

    def _value(self, sample: str, key: str, facts: Facts) -> Any:
        """A value of a sample; None if it is not there, or has another size or type."""
        node = self._file.dataset(f"{sample}/{key}")
        if node is None or _misfit(node, facts):
            return None
        if facts.is_text:
            return _text(node)
        value = np.reshape(node[()], facts.shape)
        # int64 and uint64 would become float64
        is_whole = facts.dtype.kind in "iu" and value.dtype.kind in "iu"
        return value.astype(facts.dtype) if is_whole or value.dtype.kind not in "biufc" else value

    def problems(self, key: str, lo: int, hi: int, facts: Facts) -> dict[int, str]:
        found = {}
        for row in range(lo, hi):
            with _explaining(self.path, key):
                why = _misfit(self._file.dataset(f"{self._samples[row]}/{key}"), facts)
            if why:
                found[row] = why
        return found

    def place(self, key: str, row: int) -> str:
        return f"{self.path}: sample '{self._samples[row]}', '{key}'"


def _open(path: Path) -> ForeignFile:
    try:
        return ForeignFile(path)
    except (OSError, RuntimeError, ValueError) as e:
        raise ShardError(f"{path}: not a readable HDF5 file: {e}") from e


@contextmanager
def opening(path: Path) -> Iterator[ForeignFile]:
    """A file for one look at it. Raises ShardError if it cannot be read, or leads out of itself."""
    file = _open(path)
    try:
        with _explaining(path):
            yield file
    finally:
        file.close()


@contextmanager
def _explaining(path: Path, key: str = "") -> Iterator[None]:
    """Turn what h5py raises for files that are damaged, or hold what NumPy does not know, into a ShardError."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as e:
        what = f"{path}: '{key}' cannot be read" if key else str(path)
        raise ShardError(f"{what}: {e}") from e


def _dtype(place: str, dataset: Any) -> np.dtype[Any]:
    """The type of numbers; object for text."""
    try:
        stored = dataset.dtype
    except (TypeError, ValueError) as e:
        raise ShardError(f"{place} holds what NumPy does not know: {e}") from e
    if h5py.check_string_dtype(stored) is not None:
        return np.dtype(object)
    dtype: np.dtype[Any] = np.dtype(h5py.check_vlen_dtype(stored) or stored)
    if dtype.kind not in "biufc":
        raise ShardError(f"{place} holds {dtype}, neither numbers nor text")
    return dtype


def _parsed_list(text: str) -> Any:
    """A list of names, as shards have it: JSON."""
    try:
        return parsed(text)
    except ValueError:
        return None


def _misfit(node: Any, facts: Facts) -> str:
    """Why a data set is no value of the column; "" if it is one."""
    if node is None or node.shape is None:
        return "there is none"
    if facts.is_text:
        return ""
    if node.size != np.prod(facts.shape, dtype=int):
        return f"expected {facts.shape}, found shape {node.shape}"
    if h5py.check_string_dtype(node.dtype) is None:
        if facts.dtype.kind in "iu" and node.dtype.kind in "iu":
            return _out_of_range(node, facts.dtype)
        fits = castable(node.dtype, facts.dtype)
        return "" if fits else f"expected {facts.dtype.name}, found {node.dtype.name}"
    try:
        np.asarray(node[()]).astype(facts.dtype)
        return ""
    except (ValueError, TypeError, OverflowError):
        return f"expected {facts.dtype.name}, found {_text(node)[:40]!r}"


def _out_of_range(node: Any, dtype: np.dtype[Any]) -> str:
    if np.can_cast(node.dtype, dtype, "safe"):
        return ""
    values, limits = np.atleast_1d(node[()]).ravel().tolist(), np.iinfo(dtype)
    bad = [value for value in values if not limits.min <= value <= limits.max]
    return f"{bad[0]} is out of the range of {dtype.name}" if bad else ""


def _text(node: Any) -> str:
    """A text of any of HDF5's kinds; characters one by one are how Conduit has it."""
    value = node[()]
    if isinstance(value, np.ndarray):
        value = value.tobytes() if value.dtype.kind == "S" else "".join(as_text(value.ravel()))
    return value.rstrip(b"\0").decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
