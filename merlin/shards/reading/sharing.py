"""What threads share and a forked child gets anew: a lock, a cache with a limit in bytes, a pool of threads."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor

from merlin.shards.format.segments import Array

_MAX_THREADS = 16  # that decompress


class ForkLock:
    """A reentrant lock. In a forked child it is free, whichever thread of the parent held it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in _locks:
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)  # the child has only one thread then


class Cache:
    """Arrays by key, `limit` bytes of them at most: what was used longest ago goes first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._kept: OrderedDict[Hashable, tuple[Array, int]] = OrderedDict()
        self._lock = ForkLock()

    def get(self, key: Hashable) -> Array | None:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, values: Array) -> None:
        """Keep an array, which nobody changes from now on."""
        size = _size(values)
        if size > self.limit:
            return
        with self._lock:
            before = self._kept.pop(key, None)
            self.size += size - (before[1] if before else 0)
            self._kept[key] = values, size
            while self._kept and self.size > self.limit:  # a fork may come between two of these lines
                self.size -= self._kept.popitem(last=False)[1][1]

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self.size = 0


def _size(values: Array) -> int:
    if values.dtype.kind != "O":
        return values.nbytes
    return values.nbytes + sum(map(sys.getsizeof, values.ravel().tolist()))


class Workers:
    """`threads` threads at most, the caller's among them; None: one for each core, 16 at most."""

    def __init__(self, threads: int | None) -> None:
        self.threads = (
            max(1, threads) if threads is not None else min(_MAX_THREADS, len(os.sched_getaffinity(0)))
        )
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()

    def run(self, parts: Sequence[Callable[[], None]]) -> None:
        """Run all parts, the first one here; return when all have ended, and raise the first error of any."""
        if len(parts) < 2 or self.threads < 2:
            for part in parts:
                part()
            return
        others = [self._workers().submit(part) for part in parts[1:]]
        try:
            parts[0]()
        finally:
            errors = [future.exception() for future in others]  # no thread works on the parts any more
        for error in errors:
            if error is not None:
                raise error

    def _workers(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pid != os.getpid():
            self._pool, self._pid = ThreadPoolExecutor(self.threads - 1, "merlin-reader"), os.getpid()
        return self._pool

    def close(self) -> None:
        if self._pool is not None and self._pid == os.getpid():
            self._pool.shutdown()
        self._pool = None
