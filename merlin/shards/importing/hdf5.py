"""HDF5 files: rows of data sets, or one group for each sample as Conduit writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from merlin.errors import ShardError, UsageError
from merlin.shards.export.view import Array, Values
from merlin.shards.format.segments import Ragged
from merlin.shards.importing.sources import Facts, SourceFile, as_text, list_some


class RowsFile(SourceFile):
    """Data sets whose first axis counts samples.

    Ragged: a group of ``values`` and ``offsets``, a data set that another one cuts, or variable-length rows.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file = _open(path)

    def names(self) -> list[str]:
        import h5py

        found: list[str] = []
        self._file.visititems(
            lambda name, node: found.append(name) if isinstance(node, h5py.Dataset) else None
        )
        groups = [name.removesuffix("/values") for name in found if name.endswith("/values")]
        groups = [name for name in groups if f"{name}/offsets" in found]
        hidden = {f"{name}/{part}" for name in groups for part in ("values", "offsets")}
        return [*(name for name in found if name not in hidden and self._file[name].shape), *groups]

    def has(self, key: str) -> bool:
        return key in self._file

    def facts(self, key: str, offsets: str | None = None) -> Facts:
        import h5py

        values, cuts = self._parts(key, offsets)
        if not values.shape:
            raise ShardError(f"{self.path}: '{key}' is a single value; a column has one for each sample")
        found = _dtype(f"{self.path}: '{key}'", values)
        if cuts is not None:
            return Facts(cuts.shape[0] - 1, found, values.shape[1:], ragged=True)
        ragged = found.kind != "O" and h5py.check_vlen_dtype(values.dtype) is not None
        return Facts(values.shape[0], found, values.shape[1:], ragged)

    def read(self, key: str, lo: int, hi: int, facts: Facts, offsets: str | None = None) -> Values:
        values, cuts = self._parts(key, offsets)
        try:
            if cuts is not None:
                where = np.asarray(cuts[lo : hi + 1], dtype=np.int64)
                return Ragged(np.asarray(values[int(where[0]) : int(where[-1])]), where - where[0])
            if facts.ragged:
                return _join(values[lo:hi], facts)
            return as_text(values.asstr()[lo:hi]) if facts.is_text else np.asarray(values[lo:hi])
        except OSError as e:
            raise ShardError(f"{self.path}: '{key}' cannot be read: {e}") from e

    def lengths(self, key: str, lo: int, hi: int, facts: Facts, offsets: str | None = None) -> Array:
        cuts = self._parts(key, offsets)[1]
        if cuts is None:
            return super().lengths(key, lo, hi, facts, offsets)
        return np.diff(np.asarray(cuts[lo : hi + 1], dtype=np.int64))

    def _parts(self, key: str, offsets: str | None) -> tuple[Any, Any]:
        """The data set, and the one that cuts it into samples."""
        import h5py

        node = self._file.get(key)
        if isinstance(node, h5py.Group) and {"values", "offsets"} <= set(node):
            return node["values"], node["offsets"]
        if not isinstance(node, h5py.Dataset):
            raise ShardError(f"{self.path}: '{key}' is no data set; there are: {list_some(self.names())}")
        return node, None if offsets is None else self._file[offsets]

    def about(self, key: str) -> dict[str, Any]:
        node = self._file[key]
        told = dict(node.attrs)
        if "values" in getattr(node, "keys", dict)():
            told = dict(node["values"].attrs) | told
        known = ("kind", "units", "description", "layout")
        texts = {name: told[name] for name in known if isinstance(told.get(name), str | bytes)}
        found: dict[str, Any] = {name: as_text([text])[0] for name, text in texts.items() if text}
        names = {word: _names(told.get(word)) for word in ("axes", "channels")}
        found |= {word: listed for word, listed in names.items() if listed}
        if key in ("sample_id", "row") and str(self._file.attrs.get("format", "")).startswith("merlin-"):
            found["role"] = "id"
        is_any = isinstance(told.get("finite"), bool | np.bool_) and not told["finite"]
        return found | ({"finite": False} if is_any else {})

    def close(self) -> None:
        self._file.close()


class GroupsFile(SourceFile):
    """Each group of the file is a sample, in the order of their names; data sets inside have equal names."""

    def __init__(self, path: Path, success: str | None = None) -> None:
        import h5py

        super().__init__(path)
        self._file = _open(path)
        self._samples = [name for name in self._file if self._file.get(name, getclass=True) is h5py.Group]
        self._success = success
        self._known: dict[str, str] = {}  # why a sample failed, as far as it was asked
        if not self._samples:
            raise ShardError(f"{path} holds no groups, which would be its samples")
        if success and not any(success in self._file[name] for name in self._samples):
            raise UsageError(f"success: no sample of {path} has a data set '{success}'")
        self._first = next((name for name in self._samples if not self._failure(name)), self._samples[0])

    def _failure(self, name: str) -> str:
        """Why a sample failed; nothing if it did not."""
        import h5py

        if self._success is not None and name not in self._known:
            node = self._file[name].get(self._success)
            if not isinstance(node, h5py.Dataset):
                self._known[name] = f"there is no {self._success}"
            else:
                self._known[name] = "" if np.asarray(node[()]).all() else f"{self._success} is 0"
        return self._known.get(name, "")

    def failures(self, lo: int, hi: int) -> dict[int, str]:
        if self._success is None:
            return {}
        found = {row: self._failure(self._samples[row]) for row in range(lo, hi)}
        return {row: why for row, why in found.items() if why}

    def names(self) -> list[str]:
        import h5py

        found: list[str] = []
        self._file[self._first].visititems(
            lambda name, node: found.append(name) if isinstance(node, h5py.Dataset) else None
        )
        return [name for name in found if name != self._success]

    def has(self, key: str) -> bool:
        return key in self._file[self._first]

    def facts(self, key: str, offsets: str | None = None) -> Facts:
        dataset = self._file[self._first][key]
        dtype = _dtype(f"{self.path}: '{self._first}/{key}'", dataset)
        shape = () if dtype.kind == "O" or dataset.shape == (1,) else dataset.shape
        return Facts(len(self._samples), dtype, shape)

    def read(self, key: str, lo: int, hi: int, facts: Facts, offsets: str | None = None) -> Values:
        """Samples that `problems` reports are zero, or empty text."""
        rows = [self._value(self._samples[i], key, facts) for i in range(lo, hi)]
        if facts.is_text:
            return as_text("" if row is None else row for row in rows)
        out = np.zeros((hi - lo, *facts.shape), facts.dtype)
        for i, row in enumerate(rows):
            if row is not None:
                out[i] = row
        return out

    def _value(self, sample: str, key: str, facts: Facts) -> Any:
        """None if it is not there, or has another size."""
        node = self._file[sample].get(key)
        if node is None:
            return None
        if facts.is_text:
            return _text(node)
        value = node[()]
        return np.reshape(value, facts.shape) if np.size(value) == np.prod(facts.shape, dtype=int) else None

    def problems(self, key: str, lo: int, hi: int, facts: Facts) -> dict[int, str]:
        found = {}
        for row in range(lo, hi):
            group = self._file[self._samples[row]]
            if key not in group:
                found[row] = "there is none"
            elif not facts.is_text and group[key].size != np.prod(facts.shape, dtype=int):
                found[row] = f"expected {facts.shape}, found shape {group[key].shape}"
        return found

    def place(self, key: str, row: int) -> str:
        return f"{self.path}: sample '{self._samples[row]}', '{key}'"

    def close(self) -> None:
        self._file.close()


def _open(path: Path) -> Any:
    import h5py
    import hdf5plugin  # noqa: F401 - registers decompressors

    try:
        return h5py.File(path, "r", locking=False)
    except OSError as e:
        raise ShardError(f"{path}: not a readable HDF5 file: {e}") from e


def _dtype(place: str, dataset: Any) -> np.dtype[Any]:
    """Of numbers; object for text."""
    import h5py

    if h5py.check_string_dtype(dataset.dtype) is not None:
        return np.dtype(object)
    dtype: np.dtype[Any] = np.dtype(h5py.check_vlen_dtype(dataset.dtype) or dataset.dtype)
    if dtype.kind not in "biufc":
        raise ShardError(f"{place} holds {dtype}, neither numbers nor text")
    return dtype


def _names(attribute: Any) -> list[str]:
    """A list of names, as shards have them: JSON."""
    try:
        listed = json.loads(attribute)
    except (TypeError, ValueError):
        return []
    return listed if isinstance(listed, list) and all(isinstance(name, str) for name in listed) else []


def _text(node: Any) -> str:
    """A text of any of HDF5's kinds; characters one by one are how Conduit has it."""
    value = node[()]
    if isinstance(value, np.ndarray):
        value = value.tobytes() if value.dtype.kind == "S" else "".join(map(str, value.tolist()))
    return value.rstrip(b"\0").decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _join(rows: Array, facts: Facts) -> Ragged:
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    values = np.concatenate(rows) if len(rows) else np.zeros(0, facts.dtype)
    return Ragged(values.astype(facts.dtype, copy=False), offsets)
