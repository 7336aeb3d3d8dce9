"""Which samples a chart draws: all of them, or a subset that is the same every time."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from merlin.errors import UsageError
from merlin.shards.format.segments import Array, offsets_of
from merlin.shards.format.splits import split_indices
from merlin.shards.reading.query import positions_where
from merlin.shards.reading.reader import SampleReader

MAX_ROWS = 100_000  # of scalars and inputs; with more, a histogram of them looks the same
_MAX_SHARDS = 100  # opened for these rows at most; so many stay open


class Choice(Struct, frozen=True):
    """The rows that are drawn, ascending, and the samples that they stand for."""

    reader: SampleReader  # or the selection that a query made of it
    rows: Array  # (n,) indices into the reader
    split: Array  # (n,) index into `split_names`; len(split_names) for none
    split_names: tuple[str, ...]
    total: int  # samples they were chosen from; -1 if that would have to be counted
    condition: str  # "", or "split train", "samples with yield > 1e14"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def note(self) -> str:
        """ "12,000 samples" or "a fixed subset of 100,000 of 1,000,000 samples"."""
        return self.note_of(len(self))

    def note_of(self, num: int) -> str:
        """The note of a chart that draws `num` of the rows."""
        where = f" ({self.condition})" if self.condition else ""
        if num == self.total:
            return f"{num:,} samples{where}"
        of = f" of {self.total:,}" if self.total > 0 else ""
        return f"a fixed subset of {num:,}{of} samples{where}"

    def some(self, num: int) -> Array:
        """At most `num` of the rows, spread evenly."""
        return self.rows[_spread(len(self.rows), num)]


def choose(reader: SampleReader, *, split: str = "", query: str = "") -> Choice:
    """Choose the rows to draw. Raises UsageError for an unknown split, or if nothing is left."""
    splits = reader.manifest.splits
    names = tuple(splits.fractions)
    if split and split not in names:
        raise UsageError(f"no split '{split}' in {reader.path}; there are: {', '.join(names) or 'none'}")
    condition = [f"split {split}"] if split else []
    condition += [] if reader.is_whole else [f"selected from {reader.manifest.num_rows:,}"]
    if query:
        condition.append(f"where {query}")
        reader = reader.take(positions_where(reader, query))
    num = len(reader)
    share = splits.fractions[split] if split else 1.0
    sizes = [shard.num_rows for shard in reader.manifest.shards]
    wanted = min(num, int(MAX_ROWS / max(share, 1e-3) * 1.05))
    rows = _rows(sizes, wanted, None if reader.is_whole else reader.positions)
    member = split_indices(sample_ids(reader, rows), splits.fractions, splits.seed)
    total = num
    if split:
        inside = np.flatnonzero(member == names.index(split))
        total = len(inside) if len(rows) == num else -1 if query else splits.counts.get(split, -1)
        inside = inside[_spread(len(inside), MAX_ROWS)]
        rows, member = rows[inside], member[inside]
    words = " and ".join(condition)
    if not len(rows):
        raise UsageError(f"{reader.path} has no samples to draw" + (f": {words}" if words else ""))
    return Choice(reader, rows, member, names, total, words)


def sample_ids(reader: SampleReader, rows: Array) -> Array:
    """The sample of each of some rows, without reading those of all others."""
    return np.asarray(reader.column_at("sample_id")[rows])


def even(size: int, num: int) -> Array:
    """At most `num` of `size` positions, evenly spaced."""
    return np.unique(np.linspace(0, max(0, size - 1), min(size, num)).astype(np.int64))


def _rows(sizes: list[int], num: int, positions: Array | None = None) -> Array:
    """`num` rows of shards of these sizes, from evenly spaced shards if there are very many.

    With `positions`, which are such rows, the result is indices into these.
    """
    starts = offsets_of(sizes)
    if positions is not None:
        shard_of = np.searchsorted(starts[1:], positions, side="right")
        touched = np.unique(shard_of)
        pool = np.flatnonzero(np.isin(shard_of, touched[_spread(len(touched), _MAX_SHARDS)]))
    elif starts[-1] <= num:
        pool = np.arange(starts[-1])
    else:
        shards = _spread(len(sizes), _MAX_SHARDS)
        pool = np.concatenate([np.arange(starts[k], starts[k + 1]) for k in shards])
    return np.asarray(pool[_spread(len(pool), num)])


def _spread(size: int, num: int) -> Array:
    """`num` of `size` positions, ascending: one at random from each of `num` equal parts, so that neither the
    order of the samples nor its period shows."""
    if size <= num:
        return np.arange(size)
    edges = np.arange(num + 1) * size // num
    return np.asarray(edges[:-1] + (np.random.default_rng(0).random(num) * np.diff(edges)).astype(np.int64))
