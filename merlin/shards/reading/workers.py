"""Threads that decompress; a forked child gets its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

_MAX_THREADS = 16


class Workers:
    """`threads` threads at most, the caller's among them; None: one for each core, 16 at most."""

    def __init__(self, threads: int | None) -> None:
        self.threads = max(1, threads) if threads is not None else min(_MAX_THREADS, _num_cores())
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
            errors = [future.exception() for future in others]  # nobody works on what was given any more
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


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
