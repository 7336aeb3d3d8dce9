"""What an import asks of a file: it holds columns by key, and a column's first axis counts samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from merlin.base.text import some_of
from merlin.errors import ShardError
from merlin.shards.format.segments import Array, Ragged, Values


class Facts(Struct, frozen=True):
    """What a column holds."""

    num: int  # samples
    dtype: np.dtype[Any]  # object: text
    shape: tuple[int, ...]  # of one sample, or of one item if ragged
    ragged: bool = False

    @property
    def is_text(self) -> bool:
        return self.dtype.kind == "O"


class SourceFile(ABC):
    """One file. Reading is fastest forward, sample by sample, as an import does it."""

    # a column has no type: its values, such as cells of text, are read as the type that it is taken for
    has_untyped_columns = False

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def names(self) -> list[str]:
        """The keys of all columns, in the order of the file."""

    @abstractmethod
    def has(self, key: str) -> bool:
        """Say whether the file has the column."""

    def facts(self, key: str, offsets: str | None = None) -> Facts:
        """What the column holds; `offsets` is the column that cuts it into samples.

        Raises ShardError if it cannot be the column of a data set.
        """
        pair = self._pair(key, offsets)
        if pair is None:
            return self._facts(key)
        values = self._facts(pair[0])
        what = f"{self.path}: the offsets of '{key}' are no list of n + 1 numbers"
        try:
            cuts = self._facts(pair[1])
        except ShardError as e:
            raise ShardError(f"{what}: {e}") from e
        if cuts.shape or cuts.ragged or not cuts.num:
            raise ShardError(what)
        return Facts(cuts.num - 1, values.dtype, values.shape, ragged=True)

    def read(self, key: str, lo: int, hi: int, facts: Facts, offsets: str | None = None) -> Values:
        """Samples [lo, hi) of the column; `facts` says what they are taken for."""
        pair = self._pair(key, offsets)
        if pair is None:
            return self._read(key, lo, hi, facts)
        where = self._cuts(pair, lo, hi)
        values = self._read(pair[0], int(where[0]), int(where[-1]), replace(facts, ragged=False))
        assert not isinstance(values, Ragged)
        return Ragged(values, where - where[0])

    def lengths(self, key: str, lo: int, hi: int, facts: Facts, offsets: str | None = None) -> Array:
        """(hi - lo,) how many items each of these samples of a ragged column has."""
        pair = self._pair(key, offsets)
        return self._lengths(key, lo, hi, facts) if pair is None else np.diff(self._cuts(pair, lo, hi))

    def _pair(self, key: str, offsets: str | None) -> tuple[str, str] | None:
        """The columns of values and of offsets that a ragged column is made of, if it is."""
        return None if offsets is None else (key, offsets)

    def _cuts(self, pair: tuple[str, str], lo: int, hi: int) -> Array:
        """Where samples [lo, hi) begin and end among the values: int64. Raises ShardError if impossible."""
        key, offsets = pair
        num = self._facts(key).num
        found = np.asarray(self._read(offsets, lo, hi + 1, self._facts(offsets)))
        if found.dtype.kind not in "iu":
            raise ShardError(f"{self.path}: '{offsets}' holds {found.dtype} offsets, and not whole numbers")
        begins = lo > 0 or found[0] == 0
        ends = hi < self._facts(offsets).num - 1 or found[-1] == num
        if not (begins and ends) or found.min() < 0 or found.max() > num or (found[1:] < found[:-1]).any():
            raise ShardError(
                f"{self.path}: the offsets '{offsets}' do not ascend from 0 to {num:,}, the number of items"
            )
        return found.astype(np.int64)

    @abstractmethod
    def _facts(self, key: str) -> Facts:
        """`facts` of a column that no other one cuts."""

    @abstractmethod
    def _read(self, key: str, lo: int, hi: int, facts: Facts) -> Values:
        """`read` of a column that no other one cuts."""

    def _lengths(self, key: str, lo: int, hi: int, facts: Facts) -> Array:
        """`lengths` of a ragged column that no other one cuts."""
        found = self._read(key, lo, hi, facts)
        assert isinstance(found, Ragged)
        return found.lengths

    def problems(self, key: str, lo: int, hi: int, facts: Facts) -> dict[int, str]:
        """Samples in [lo, hi) that have no value, or one of another type, and what is there instead."""
        return {}

    def failures(self, lo: int, hi: int) -> dict[int, str]:
        """Samples in [lo, hi) that the file itself calls failed, and why; they need no values."""
        return {}

    def expect(self, lo: int, hi: int) -> None:
        """Announce that samples [lo, hi) of several columns are read next."""
        return

    def place(self, key: str, row: int) -> str:
        """Where a value is, for people: file, row and column; line and column of text."""
        return f"{self.path}: row {row}, '{key}'"

    def about(self, key: str) -> dict[str, Any]:
        """What the file says about the column: units, description, kind, axes, role."""
        return {}

    def close(self) -> None:
        """Close what is open."""
        return


def with_ragged(names: Sequence[str], separator: str) -> list[str]:
    """The keys of columns; a pair of values and offsets, such as a.values and a.offsets, is one key: a."""
    pairs = {
        name.removesuffix(f"{separator}values"): [name, f"{name.removesuffix('values')}offsets"]
        for name in names
        if name.endswith(f"{separator}values") and f"{name.removesuffix('values')}offsets" in names
    }
    hidden = {name for pair in pairs.values() for name in pair}
    return [*(name for name in names if name not in hidden), *pairs]


def plain_about(written: Any) -> dict[str, Any]:
    """What a file says about a column, as far as it has the right type.

    Raises TypeError or ValueError for anything but a mapping.
    """
    texts = ("path", "role", "kind", "units", "description", "layout")
    found: dict[str, Any] = {}
    for name, value in dict(written).items():
        is_list = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
        if (
            (name in texts and isinstance(value, str))
            or (name in ("axes", "channels") and is_list)
            or (name == "finite" and isinstance(value, bool))
        ):
            found[name] = value
    return found


def require_one(path: Path, names: Sequence[str], key: str) -> None:
    """Raise ShardError if several columns have the name."""
    if names.count(key) > 1:
        raise ShardError(
            f"{path}: {names.count(key)} columns have the name '{key}'; give each a name of its own"
        )


def list_some(names: Iterable[str]) -> str:
    """Names for a message."""
    return some_of(names, limit=12) or "nothing"


def as_text(values: Iterable[Any]) -> Array:
    """An array of str; bytes are taken for UTF-8."""
    found = [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values]
    out = np.empty(len(found), dtype=object)
    out[:] = found
    return out
