"""The shards' files, opened when first touched: few open at a time, whatever the number of shards.

What is known about a shard's columns stays; open files and maps are dropped again, those used longest ago first.
A file that has to be opened again is asked for as many more columns as are known of it, so that one who reads
column after column of many shards opens each a few times, and not once for each column. A forked child keeps maps
and knowledge, and opens its own files.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from merlin.base.field import TEXT_DTYPE
from merlin.errors import ShardError
from merlin.shards.format.manifest_file import ColumnInfo, DataSet
from merlin.shards.format.segments import Array
from merlin.shards.reading.address_range import map_limit
from merlin.shards.reading.shard_file import ReplacedError, ShardFile, Stored
from merlin.shards.reading.sharing import ForkLock

T = TypeVar("T")

MAX_HANDLES = 32  # files open in the HDF5 library


class ShardFiles:
    """The files of all shards; what is missing, damaged or foreign raises ShardError with its file."""

    def __init__(self, data: DataSet) -> None:
        self.data = data
        self.max_maps = map_limit() // 2
        self._columns = {column.path: column for column in data.columns}
        self._paths = list(self._columns)
        self._is_ragged = any(column.ragged for column in data.columns)
        self._layouts: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self._files: dict[int, ShardFile] = {}
        self._maps: OrderedDict[int, tuple[ShardFile, Array]] = OrderedDict()
        self._handles: OrderedDict[int, ShardFile] = OrderedDict()
        self._lock = ForkLock()
        self._pid = os.getpid()

    def column(self, path: str) -> ColumnInfo:
        """What the manifest says of a column."""
        try:
            return self._columns[path]
        except KeyError:
            raise ShardError(f"{self.data.directory}: its manifest lists no column '{path}'") from None

    def layout(self, path: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """dtype (object for text) and shape of one row, or of one item of a ragged column."""
        found = self._layouts.get(path)
        if found is None:
            column = self.column(path)
            dtype = np.dtype(object if column.dtype == TEXT_DTYPE else column.dtype)
            found = self._layouts[path] = dtype, column.shape
        return found

    def stored(self, shard: int, path: str) -> Stored:
        """Where a column lies in a shard."""
        return self.use(shard, lambda file: self.find(shard, file, path))

    def find(self, shard: int, file: ShardFile, path: str) -> Stored:
        """Where a column lies in the file that `use` gives; what lies there is read from this file, too."""
        known = file.known(path)
        if known is not None:
            return known
        with self._lock:
            num_more = 0 if file.handle is not None else file.num_known
            self._handle(shard, file)
            found = file.find(path, *self.layout(path), self._num_items(shard, path))
            later = self._paths[self._paths.index(path) + 1 :] if num_more else ()
            self._find_all(shard, file, islice((p for p in later if file.known(p) is None), num_more))
            return found

    def _find_all(self, shard: int, file: ShardFile, paths: Iterable[str]) -> None:
        """What cannot be found is an error only when it is read."""
        for path in paths:
            with suppress(ShardError):
                file.find(path, *self.layout(path), self._num_items(shard, path))

    def prepare(self, shard: int, paths: Sequence[str]) -> None:
        """Find columns that are to be read, with the file opened once."""

        def find(file: ShardFile) -> None:
            missing = [path for path in paths if file.known(path) is None]
            if missing:
                with self._lock:
                    self._handle(shard, file)
                    self._find_all(shard, file, missing)

        self.use(shard, find)

    def _num_items(self, shard: int, path: str) -> int | None:
        num_rows = self.data.shards[shard].num_rows
        if not self.column(path).ragged:
            return num_rows
        return num_rows + 1 if path.endswith("/offsets") else None

    def use(self, shard: int, action: Callable[[ShardFile], T]) -> T:
        """Call `action` with a shard's file, and again with the new file if it was replaced meanwhile.

        Raises ShardError if the new one has other values, and some are ragged: they would be cut where the old were.
        """
        for is_last in (False, True):
            file = self._file(shard)
            try:
                return action(file)
            except ReplacedError:
                if is_last:
                    raise file.damaged("somebody replaces it again and again") from None
                if self._is_ragged and file.has_other_values():
                    raise file.written_again("its values have changed since they were first read") from None
                self._forget(shard)
        raise AssertionError("unreachable")

    def _file(self, shard: int) -> ShardFile:
        if self._pid != os.getpid():
            self._after_fork()
        file = self._files.get(shard)
        if file is None:
            file = self._files.setdefault(shard, ShardFile(self.data, self.data.shards[shard]))
        return file

    def _after_fork(self) -> None:
        with self._lock:
            if self._pid == os.getpid():
                return
            for file in self._handles.values():
                file.handle = None  # the parent's, who closes it
            self._handles.clear()
            self._pid = os.getpid()

    def _forget(self, shard: int) -> None:
        with self._lock:
            file = self._files.pop(shard, None)
            self._handles.pop(shard, None)
            self._maps.pop(shard, None)
            if file is not None:
                file.close()

    def _handle(self, shard: int, file: ShardFile) -> Any:
        """The shard, open in the HDF5 library; to be used while the lock is held."""
        if file.handle is not None:
            self._handles.move_to_end(shard)
            return file.handle
        while len(self._handles) >= MAX_HANDLES:
            self._handles.popitem(last=False)[1].close()
        file.open()
        self._handles[shard] = file
        return file.handle

    def content(self, shard: int, file: ShardFile) -> Array:
        """The bytes of the file that `use` gives, mapped."""
        kept = self._maps.get(shard)
        if kept is not None and kept[0] is file:
            return kept[1]
        with self._lock:
            found = file.map()
            while len(self._maps) >= self.max_maps:
                self._maps.popitem(last=False)
            self._maps[shard] = file, found
            return found

    def read_library(self, shard: int, path: str, lo: int, hi: int) -> Array:
        """Items [lo, hi) through the HDF5 library."""

        def read(file: ShardFile) -> Array:
            with self._lock:
                dataset = self._handle(shard, file)[path]
                try:
                    text = dataset.dtype.kind == "O"
                    return np.asarray(dataset.asstr()[lo:hi] if text else dataset[lo:hi])
                except (OSError, ValueError, RuntimeError) as e:
                    raise file.damaged(f"{path} cannot be read: {e}") from e

        return self.use(shard, read)

    def close(self) -> None:
        """Forget all files; arrays that were handed out stay valid."""
        with self._lock:
            if self._pid == os.getpid():
                for file in self._handles.values():
                    file.close()
            self._handles.clear()
            self._files.clear()
            self._maps.clear()
