"""Reading columns of all shards, whichever way each is stored.

Rows are counted over the data set, without those that are absent; the items of a ragged column are counted
within their shard.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from merlin.shards.format.aligned import aligned_empty, copy_rows
from merlin.shards.format.manifest_file import DataSet
from merlin.shards.format.segments import Array, numbers_of_runs
from merlin.shards.reading.address_range import map_limit
from merlin.shards.reading.chunk_reader import ChunkReader, Share
from merlin.shards.reading.gather import LARGE_BYTES, Gather
from merlin.shards.reading.indexing import groups
from merlin.shards.reading.mapped_column import MappedColumn
from merlin.shards.reading.shard_file import Chunked, Contiguous, ShardFile, ThroughLibrary
from merlin.shards.reading.shard_files import ShardFiles
from merlin.shards.reading.sharing import Cache, ForkLock, Workers

OnProgress = Callable[[int, int], None]  # shards opened, in all

CACHE_BYTES = 256 << 20
_RUN_BYTES = 2048  # runs of items that are at least this long on average are copied one by one


class Store:
    """Columns by path, e.g. "fields/image" or "sample_id"."""

    def __init__(self, data: DataSet, cache_bytes: int = CACHE_BYTES, threads: int | None = None) -> None:
        """`cache_bytes` bounds the memory for decompressed chunks and text; `threads` decompress (default: one
        for each core)."""
        self.data = data
        self._options = (cache_bytes, threads)
        self.files = ShardFiles(data)
        self.starts = np.concatenate(([0], np.cumsum([s.num_rows for s in data.shards], dtype=np.int64)))
        self.num_rows = int(self.starts[-1])
        self._starts: list[int] = self.starts.tolist()
        self._borders = self.starts[1:]
        self._cache = Cache(cache_bytes)
        self._workers = Workers(threads)
        self._chunks = ChunkReader(self.files, self._cache, self._workers)
        self._compressed = {f.path for f in data.fields if f.is_compressed}
        self._gather = Gather(self._workers)
        self._mapped: dict[str, MappedColumn | None] = {}
        self._strides: dict[str, tuple[int, int]] = {}  # of mapped columns with regular places: see `_stride`
        self._map_budget = map_limit() // 2  # the other half is for files that are mapped completely
        self._lock = ForkLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.data, *self._options)

    # shapes and places

    def layout(self, path: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """dtype (object for text) and shape of one row, or of one item of a ragged column."""
        return self.files.layout(path)

    def item_bytes(self, path: str) -> int:
        dtype, shape = self.layout(path)
        return dtype.itemsize * prod(shape)

    def is_compressed(self, path: str) -> bool:
        return path in self._compressed

    def locate(self, row: int) -> tuple[int, int]:
        """(shard, row in it)."""
        shard = bisect_right(self._starts, row) - 1
        return shard, row - self._starts[shard]

    def locate_all(self, rows: Array) -> tuple[Array, Array]:
        """(shards, rows in them) of rows (n,)."""
        shards = np.searchsorted(self._borders, rows, side="right")
        return shards, rows - self.starts[shards]

    def pieces(self, lo: int, hi: int) -> Iterator[tuple[int, int, int]]:
        """Rows [lo, hi) cut at shard borders: (shard, lo in it, hi in it)."""
        shard = bisect_right(self._starts, lo) - 1
        while lo < hi:
            end = min(hi, self._starts[shard + 1])
            if lo < end:
                yield shard, lo - self._starts[shard], end - self._starts[shard]
            lo, shard = end, shard + 1

    def prepare(self, paths: Sequence[str], shards: Array, on_progress: OnProgress) -> None:
        """Open `shards` (n,), each once for all columns that are to be read; of ragged ones, paths are the groups'."""
        stored = [
            column.path
            for column in self.data.columns
            if column.path in paths or (column.ragged and column.path.rpartition("/")[0] in paths)
        ]
        for done, shard in enumerate(shards.tolist(), start=1):
            self.files.prepare(shard, stored)
            on_progress(done, len(shards))

    # rows of a column with one item for each

    def read_rows(self, path: str, lo: int, hi: int) -> Array:
        """Rows [lo, hi): a read-only view of mapped files if they lie together, else a copy."""
        dtype, shape = self.layout(path)
        if lo >= hi:
            return np.empty((0, *shape), dtype)
        shard, local = self.locate(lo)
        if hi <= self._starts[shard + 1]:
            return self.read(path, shard, local, local + hi - lo)
        pieces = list(self.pieces(lo, hi))
        shards = np.array([shard for shard, _, _ in pieces])
        mapped = self._map(path)
        if mapped is not None and mapped.place(shards):
            gaps = mapped.first[shards] - self.starts[shards]
            if (gaps == gaps[0]).all():
                return mapped.items[lo + int(gaps[0]) : hi + int(gaps[0])]
        out = aligned_empty((hi - lo, *shape), dtype)
        if self.is_compressed(path):
            self.take(path, *self.locate_all(np.arange(lo, hi)), out)
            return out
        at = 0
        for shard, a, b in pieces:
            out[at : at + b - a] = self.read(path, shard, a, b)
            at += b - a
        return out

    def take_rows(self, path: str, rows: Array, out: Array | None = None) -> Array:
        """Rows (n,) int64 in any order, into `out` if there is one: C-contiguous, (n, …)."""
        dtype, shape = self.layout(path)
        if out is None:
            out = aligned_empty((len(rows), *shape), dtype)
        if not len(rows):
            return out
        mapped = self._map(path)
        if mapped is not None and mapped.is_complete and path in self._strides:
            num, gap = self._strides[path]
            self._gather.rows(mapped.items, rows + rows // num * gap if gap else rows, out)
        else:
            self.take(path, *self.locate_all(rows), out)
        return out

    # items

    def num_items(self, path: str, shard: int) -> int:
        return self.files.stored(shard, path).num

    def read(self, path: str, shard: int, lo: int, hi: int) -> Array:
        """Items [lo, hi) of a shard: a read-only view if they are stored as in memory."""
        dtype, shape = self.layout(path)
        if lo >= hi:
            return np.empty((0, *shape), dtype)
        if dtype.kind == "O":
            return self._text(path, shard)[lo:hi].copy()  # what is kept stays as it is
        mapped = self._map(path)
        if mapped is not None and mapped.place(np.array([shard])):
            first = int(mapped.first[shard])
            return mapped.items[first + lo : first + hi]
        stored = self._items(path, shard)
        if isinstance(stored, np.ndarray):
            return stored[lo:hi]
        out = aligned_empty((hi - lo, *shape), dtype)
        self.take(path, np.full(hi - lo, shard), np.arange(lo, hi), out)
        return out

    def take_runs(self, path: str, shards: Array, begins: Array, lengths: Array, out: Array) -> None:
        """Items [begins[k], begins[k] + lengths[k]) of shard shards[k], one run after the other."""
        mapped = self._map(path)
        is_long = len(out) * self.item_bytes(path) >= _RUN_BYTES * len(shards)
        if is_long and mapped is not None and mapped.place(shards):
            at, ends = begins + mapped.first[shards], np.cumsum(lengths)
            for a, length, end in zip(at.tolist(), lengths.tolist(), ends.tolist(), strict=True):
                out[end - length : end] = mapped.items[a : a + length]
            return
        self.take(path, np.repeat(shards, lengths), numbers_of_runs(begins, lengths), out)

    def take(self, path: str, shards: Array, local: Array, out: Array) -> None:
        """out[k] = item local[k] of shard shards[k]; `out` is C-contiguous."""
        if not len(local):
            return
        mapped = self._map(path)
        if mapped is not None and mapped.place(shards):
            self._gather.rows(mapped.items, local + mapped.first[shards], out)
            return
        shares: list[Share] = []
        for shard, at in groups(shards):
            if out.dtype.kind == "O":
                out[at] = self._text(path, shard)[local[at]]
                continue
            stored = self._items(path, shard)
            if isinstance(stored, np.ndarray):
                _scatter(stored, local[at], out, at)
            elif isinstance(stored, Chunked):
                shares.append(Share(shard, stored, local[at], at))
            else:
                self._through_library(path, shard, stored.rows, local[at], out, at)
        if shares:
            self._chunks.take(path, shares, out)

    def _items(self, path: str, shard: int) -> Array | Chunked | ThroughLibrary:
        """All items of a shard, in its mapped file; where they are stored, if they do not lie there as in memory."""
        dtype, shape = self.layout(path)

        def view(file: ShardFile) -> Array | Chunked | ThroughLibrary:
            stored = self.files.find(shard, file, path)
            if not isinstance(stored, Contiguous):
                return stored
            return np.ndarray((stored.num, *shape), dtype, self.files.content(shard, file), stored.offset)

        return self.files.use(shard, view)

    def _text(self, path: str, shard: int) -> Array:
        """All texts of a column in a shard: the library takes about as long for a single one."""
        found = self._cache.get((path, shard))
        if found is None:
            found = self.files.read_library(shard, path, 0, self.num_items(path, shard))
            self._cache.put((path, shard), found)
        return found

    def _through_library(self, path: str, shard: int, rows: int, local: Array, out: Array, at: Array) -> None:
        """Read each touched chunk once."""
        for chunk, mine in groups(local // rows):
            block = self.files.read_library(shard, path, chunk * rows, (chunk + 1) * rows)
            out[at[mine]] = block[local[mine] - chunk * rows]

    # one array over all shards

    def _map(self, path: str) -> MappedColumn | None:
        """A column as one array; None if it cannot be had that way, which is decided once."""
        if path not in self._mapped:
            with self._lock:
                if path not in self._mapped:
                    self._mapped[path] = self._make_map(path)
        found = self._mapped[path]
        return found if found is not None and found.is_usable else None

    def _make_map(self, path: str) -> MappedColumn | None:
        item_bytes, is_ragged = self.item_bytes(path), self.files.column(path).ragged
        if not item_bytes or self.layout(path)[0].kind == "O":
            return None
        num_maps = 2 * len(self.data.shards)  # with what is reserved between two parts
        share = self._map_budget if item_bytes >= LARGE_BYTES or is_ragged else self._map_budget // 8
        if path.removesuffix("/values") in self._compressed or num_maps > share:
            return None
        if is_ragged:  # the number of items is known when a file is opened; here, the most that fit it
            capacities = np.array([shard.size_bytes for shard in self.data.shards], dtype=np.int64)
        else:
            capacities = np.diff(self.starts) * item_bytes
        try:
            found = MappedColumn(self.files, path, capacities)
        except OSError:
            return None
        self._map_budget -= num_maps
        stride = None if is_ragged else self._stride(found.first)
        if stride is not None:
            self._strides[path] = stride
        return found

    def _stride(self, first: Array) -> tuple[int, int] | None:
        """(rows of a shard, unused items behind them), if that is the same for all shards except the last."""
        num = int(self.starts[1]) if len(first) else 0
        step = int(first[1]) if len(first) > 1 else num
        places = np.arange(len(first))
        is_regular = np.array_equal(self.starts[:-1], places * num) and np.array_equal(first, places * step)
        return (num, step - num) if num and is_regular and self.num_rows <= len(first) * num else None

    def close(self) -> None:
        """Forget all files; arrays that were handed out stay valid."""
        self._workers.close()
        self.files.close()
        self._mapped.clear()
        self._map_budget = map_limit() // 2
        self._cache.clear()


def _scatter(items: Array, wanted: Array, out: Array, at: Array) -> None:
    """out[at] = items[wanted]."""
    if items[:1].nbytes >= LARGE_BYTES:
        copy_rows(items, wanted.tolist(), out, at.tolist())
    else:
        out[at] = items[wanted]
