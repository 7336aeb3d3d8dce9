"""Items of compressed columns: each chunk that is needed is decompressed once, by several threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from merlin.base.codecs.codec import DecodeError
from merlin.shards.format.segments import Array
from merlin.shards.reading.indexing import groups
from merlin.shards.reading.shard_file import Chunked, ReplacedError, ShardFile
from merlin.shards.reading.shard_files import ShardFiles
from merlin.shards.reading.sharing import Cache, Workers

_JOBS_PER_THREAD = 4  # fewer are not worth another thread


class Share(NamedTuple):
    """What is wanted of one shard: out[at[k]] = item local[k]."""

    shard: int
    stored: Chunked
    local: Array
    at: Array


class _Job(Struct, frozen=True):
    """One chunk, and where its items go."""

    share: Share
    chunk: int
    picks: Array  # into the share's `local` and `at`


class ChunkReader:
    def __init__(self, files: ShardFiles, cache: Cache, workers: Workers) -> None:
        self._files = files
        self._cache = cache
        self._workers = workers

    def take(self, path: str, shares: Sequence[Share], out: Array) -> None:
        """Put the items of all shares into `out`, C-contiguous."""
        jobs = [
            _Job(share, chunk, picks)
            for share in shares
            for chunk, picks in groups(share.local // share.stored.rows)
        ]
        num = max(1, min(self._workers.threads, len(jobs) // _JOBS_PER_THREAD))
        is_kept = self._is_worth_keeping(path)
        self._workers.run([partial(self._work, jobs[i::num], path, out, is_kept) for i in range(num)])

    def _is_worth_keeping(self, path: str) -> bool:
        """True if the cache can hold the complete column, so that it is still there when wanted again."""
        dtype, shape = self._files.layout(path)
        return self._files.data.num_rows * dtype.itemsize * prod(shape) <= self._cache.limit

    def _work(self, jobs: Sequence[_Job], path: str, out: Array, is_kept: bool) -> None:
        for job in jobs:
            share = job.share
            at, rows = share.at[job.picks], share.stored.rows
            if rows == 1 and not is_kept:
                first = int(at[0])
                self._decode(job, path, out[first : first + 1])
                if len(at) > 1:
                    out[at[1:]] = out[first]
                continue
            key = (path, share.shard, job.chunk)
            block = self._cache.get(key)
            if block is None:
                block = np.empty((rows, *out.shape[1:]), out.dtype)
                self._decode(job, path, block)
                self._cache.put(key, block)
            out[at] = block[share.local[job.picks] - job.chunk * rows]

    def _decode(self, job: _Job, path: str, out: Array) -> None:
        share, before = job.share, job.share.stored
        memory = out.reshape(-1).view(np.uint8)

        def decode(file: ShardFile) -> None:
            stored = self._files.find(share.shard, file, path)
            if not isinstance(stored, Chunked) or (stored.num, stored.rows) != (before.num, before.rows):
                raise ReplacedError
            offset = int(stored.offsets[job.chunk])
            raw = self._files.content(share.shard, file)[offset : offset + int(stored.sizes[job.chunk])]
            try:
                stored.pipeline.decode(raw, int(stored.masks[job.chunk]), memory)
            except DecodeError as e:
                lo = job.chunk * stored.rows
                raise file.damaged(f"{path}, items {lo} to {lo + stored.rows}: {e}") from e

        self._files.use(share.shard, decode)
