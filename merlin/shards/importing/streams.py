"""A column of the data set, as it comes out of one file after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from merlin.plan.plan import PlannedField
from merlin.shards.format.segments import Array, Ragged, Values
from merlin.shards.importing.source_file import Facts, SourceFile
from merlin.shards.writing import check

BLOCK_BYTES = 8 << 20
_ITEMS = 1024  # what a sample of a ragged field is taken to have
_TEXT_BYTES = 256


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A file's column."""

    source: SourceFile
    key: str
    offsets: str | None
    facts: Facts


class Stream:
    """A field, input or parameter; positions count the samples of all files, one after the other."""

    def __init__(self, path: str, field: PlannedField, parts: Sequence[FileColumn]) -> None:
        self.path = path  # in a shard: "fields/image"
        self.field = field
        self._parts = parts
        self._starts = [0]
        for part in parts:
            self._starts.append(self._starts[-1] + part.facts.num)
        self.num = self._starts[-1]

    def _pieces(self, lo: int, hi: int) -> Iterator[tuple[FileColumn, int, int, int]]:
        """(part, its first position, lo, hi): positions [lo, hi) file by file, counted in the file."""
        while lo < hi:
            index = bisect_right(self._starts, lo) - 1
            start, end = self._starts[index], min(hi, self._starts[index + 1])
            yield self._parts[index], start, lo - start, end - start
            lo = end

    def expect(self, lo: int, hi: int) -> None:
        for part, _, a, b in self._pieces(lo, hi):
            part.source.expect(a, b)

    def failures(self, lo: int, hi: int) -> dict[int, str]:
        """Positions in [lo, hi) that failed, as the files say."""
        return {
            start + row: why
            for part, start, a, b in self._pieces(lo, hi)
            for row, why in part.source.failures(a, b).items()
        }

    def blocks(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """Ranges of about `BLOCK_BYTES`, as far as the size of a sample is known."""
        itemsize = _TEXT_BYTES if self.field.is_text else np.dtype(self.field.dtype).itemsize
        size = (
            itemsize * int(np.prod(self.field.shape, dtype=np.int64)) * (_ITEMS if self.field.ragged else 1)
        )
        step = max(1, BLOCK_BYTES // max(1, size))
        return ((start, min(start + step, hi)) for start in range(lo, hi, step))

    def read(self, lo: int, hi: int) -> Values:
        """Positions [lo, hi) in the field's shape, not yet in its dtype."""
        found = [self._fit(part, part.source.read(part.key, a, b, self._as(part), part.offsets))
                 for part, _, a, b in self._pieces(lo, hi)]  # fmt: skip
        if len(found) == 1:
            return found[0]
        return _join(found, self.field)

    def lengths(self, lo: int, hi: int) -> Array:
        """(hi - lo,) how many items each position of a ragged field has."""
        parts = [
            part.source.lengths(part.key, a, b, self._as(part), part.offsets)
            for part, _, a, b in self._pieces(lo, hi)
        ]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def _as(self, part: FileColumn) -> Facts:
        """What the file's column is read as: text if the field says so, numbers of its dtype from text."""
        if self.field.is_text:
            return replace(part.facts, dtype=np.dtype(object))
        if part.facts.is_text or part.source.path.suffix.lower() in (".csv", ".tab", ".tsv"):
            return replace(part.facts, dtype=np.dtype(self.field.dtype))
        return part.facts

    def _fit(self, part: FileColumn, values: Values) -> Values:
        """Lists of equal length, and flat arrays, in the field's shape."""
        if isinstance(values, Ragged) and not self.field.ragged:
            size = int(np.prod(self.field.shape, dtype=np.int64))
            item = int(np.prod(part.facts.shape, dtype=np.int64))
            lengths = np.diff(values.offsets) * item
            out = np.zeros((len(values), size), values.values.dtype)
            good = lengths == size
            flat = values.values.reshape(-1)
            for i in np.flatnonzero(good):
                out[i] = flat[values.offsets[i] * item : values.offsets[i + 1] * item]
            return out.reshape(-1, *self.field.shape)
        if isinstance(values, Ragged):
            return values
        return values.reshape(len(values), *self.field.shape)

    def problems(self, lo: int, hi: int, values: Values) -> dict[int, str]:
        """Positions in [lo, hi) whose value cannot be in the data set, and why; `values` are those read."""
        found: dict[int, str] = {}
        for part, start, a, b in self._pieces(lo, hi):
            missing = part.source.problems(part.key, a, b, self._as(part))
            found |= {start + row: why for row, why in missing.items()}
            if part.facts.ragged and not self.field.ragged:
                found |= {start + row: why for row, why in self._other_lengths(part, a, b).items()}
        if self.field.is_text:
            assert not isinstance(values, Ragged)
            bad = [i for i, text in enumerate(values.tolist()) if "\0" in text]
            return found | {lo + i: "expected text, found a NUL character in it" for i in bad}
        if isinstance(values, Ragged):
            bad_items = np.flatnonzero(check.bad_rows(self.field, values.values))
            rows = np.searchsorted(values.offsets, bad_items, side="right") - 1
            wrong = dict(zip((lo + rows).tolist(), bad_items.tolist(), strict=True))
            why = {row: check.explain_bad_row(self.field, values.values[item]) for row, item in wrong.items()}
            return why | found
        for i in np.flatnonzero(check.bad_rows(self.field, values)).tolist():
            found.setdefault(lo + i, check.explain_bad_row(self.field, values[i]))
        return found

    def _other_lengths(self, part: FileColumn, lo: int, hi: int) -> dict[int, str]:
        values = part.source.read(part.key, lo, hi, self._as(part), part.offsets)
        assert isinstance(values, Ragged)
        size = int(np.prod(self.field.shape, dtype=np.int64))
        lengths = np.diff(values.offsets) * int(np.prod(part.facts.shape, dtype=np.int64))
        wrong = np.flatnonzero(lengths != size).tolist()
        return {lo + i: f"expected {size} values, found {int(lengths[i])}" for i in wrong}

    def place(self, position: int) -> str:
        """Where a sample's value is, for people."""
        part, _, row, _ = next(self._pieces(position, position + 1))
        return part.source.place(part.key, row)


def _join(pieces: Sequence[Values], field: PlannedField) -> Values:
    """Samples of one file after those of another."""
    ragged = [piece for piece in pieces if isinstance(piece, Ragged)]
    if not field.ragged:
        dense = [piece for piece in pieces if not isinstance(piece, Ragged)]
        return np.concatenate(dense) if dense else np.zeros((0, *field.shape))
    lengths = np.concatenate([np.zeros(1, np.int64), *(piece.lengths for piece in ragged)])
    values = [piece.items for piece in ragged] or [np.zeros((0, *field.shape))]
    return Ragged(np.concatenate(values), np.cumsum(lengths))
