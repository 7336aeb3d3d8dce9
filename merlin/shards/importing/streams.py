"""A column of the data set, as it comes out of one file after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import prod

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from merlin.plan.plan import PlannedField
from merlin.shards.format.segments import Array, Ragged, Values, offsets_of
from merlin.shards.importing.source_file import Facts, SourceFile, as_text
from merlin.shards.importing.text_numbers import not_numbers, numbers_in
from merlin.shards.writing import check

BLOCK_BYTES = 8 << 20
_ITEMS = 1024  # items assumed for a sample of a ragged field
_TEXT_BYTES = 256


class FileColumn(Struct, frozen=True):
    """A file's column."""

    source: SourceFile
    key: str
    offsets: str | None
    facts: Facts

    def taken_for(self, field: PlannedField) -> FileColumn:
        """The column with the type that it is read as.

        That is text if the field is text, and the field's dtype where the file's columns have no type.
        """
        if field.is_text:
            return replace(self, facts=replace(self.facts, dtype=np.dtype(object)))
        if self.facts.is_text or self.source.has_untyped_columns:
            return replace(self, facts=replace(self.facts, dtype=np.dtype(field.dtype)))
        return self

    def read(self, lo: int, hi: int) -> Values:
        return self.source.read(self.key, lo, hi, self.facts, self.offsets)

    def lengths(self, lo: int, hi: int) -> Array:
        return self.source.lengths(self.key, lo, hi, self.facts, self.offsets)

    def problems(self, lo: int, hi: int) -> dict[int, str]:
        return self.source.problems(self.key, lo, hi, self.facts)


class Stream:
    """A field, input or parameter; positions count the samples of all files, one after the other."""

    def __init__(self, path: str, field: PlannedField, parts: Sequence[FileColumn]) -> None:
        self.path = path  # in a shard: "fields/image"
        self.field = field
        self._parts = [part.taken_for(field) for part in parts]
        self._starts = [0, *accumulate(part.facts.num for part in parts)]
        self.num = self._starts[-1]
        self._size = prod(field.shape)  # values of a sample, or of an item
        self._no_numbers: dict[int, str] = {}  # positions of the last read with text that is none, and why

    def _pieces(self, lo: int, hi: int) -> Iterator[tuple[FileColumn, int, int, int]]:
        """Positions [lo, hi) file by file: (part, its first position, lo and hi counted in the file)."""
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
        sample_bytes = itemsize * self._size * (_ITEMS if self.field.ragged else 1)
        step = max(1, BLOCK_BYTES // max(1, sample_bytes))
        return ((start, min(start + step, hi)) for start in range(lo, hi, step))

    def read(self, lo: int, hi: int) -> Values:
        """Positions [lo, hi), at least one, in the field's shape, not yet in its dtype."""
        self._no_numbers = {}
        found = [
            self._in_shape(part, self._numbers(start + a, part.read(a, b)))
            for part, start, a, b in self._pieces(lo, hi)
        ]
        return found[0] if len(found) == 1 else _join(found)

    def _numbers(self, first: int, values: Values) -> Values:
        """The numbers, where a file with types has them as text; what is none becomes zero, and a problem."""
        items = values.items if isinstance(values, Ragged) else values
        if items.dtype.kind not in "OSU" or self.field.is_text:
            return values
        cells, dtype = as_text(items.ravel()).tolist(), np.dtype(self.field.dtype)
        numbers = numbers_in(cells, dtype).reshape(items.shape)
        offsets = (
            values.offsets - values.offsets[0] if isinstance(values, Ragged) else np.arange(len(items) + 1)
        )
        for i, why in not_numbers(cells, dtype).items():
            row = np.searchsorted(offsets, i // prod(items.shape[1:]), side="right") - 1
            self._no_numbers.setdefault(first + int(row), why)
        return Ragged(numbers, offsets) if isinstance(values, Ragged) else numbers

    def _in_shape(self, part: FileColumn, values: Values) -> Values:
        """Values in the field's shape; a list with another number of values than the field becomes zeros."""
        if not isinstance(values, Ragged):
            return values.reshape(len(values), *self.field.shape)
        if self.field.ragged:
            return values
        has_all = values.lengths * prod(part.facts.shape) == self._size
        out = np.zeros((len(values), *self.field.shape), values.values.dtype)
        out[has_all] = values.select(has_all).values.reshape(-1, *self.field.shape)
        return out

    def lengths(self, lo: int, hi: int) -> Array:
        """(hi - lo,) how many items each position of a ragged field has."""
        parts = [part.lengths(a, b) for part, _, a, b in self._pieces(lo, hi)]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def problems(self, lo: int, hi: int, values: Values) -> dict[int, str]:
        """Positions in [lo, hi) whose value cannot be in the data set, and why; `values` were read last."""
        found = {position: why for position, why in self._no_numbers.items() if lo <= position < hi}
        for part, start, a, b in self._pieces(lo, hi):
            found |= {start + row: why for row, why in part.problems(a, b).items()}
            if part.facts.ragged and not self.field.ragged:
                nums = part.lengths(a, b) * prod(part.facts.shape)
                for row in np.flatnonzero(nums != self._size).tolist():
                    found[start + a + row] = f"expected {self._size} values, found {int(nums[row])}"
        if self.field.is_text:
            assert not isinstance(values, Ragged)
            bad = [i for i, text in enumerate(values.tolist()) if "\0" in text]
            return found | {lo + i: "expected text, found a NUL character in it" for i in bad}
        for i in np.flatnonzero(check.bad_samples(self.field, values)).tolist():
            found.setdefault(lo + i, check.explain_bad_sample(self.field, values, i))
        return found

    def place(self, position: int) -> str:
        """Where a sample's value is, for people."""
        part, _, row, _ = next(self._pieces(position, position + 1))
        return part.source.place(part.key, row)


def _join(pieces: Sequence[Values]) -> Values:
    """Join the samples of several files, one file after the other."""
    dense = [piece for piece in pieces if not isinstance(piece, Ragged)]
    if dense:
        return np.concatenate(dense)
    ragged = [piece for piece in pieces if isinstance(piece, Ragged)]
    lengths = np.concatenate([piece.lengths for piece in ragged])
    return Ragged(np.concatenate([piece.items for piece in ragged]), offsets_of(lengths))
