"""The messages that a worker refused: logged once per kind, and counted for `merlin doctor`."""

from __future__ import annotations

import logging
import threading
import time

log = logging.getLogger("merlin.worker")

MAX_KINDS = 40  # kinds that are logged
EXCERPT = 60  # bytes or characters of what was refused
AGAIN_S = 60.0  # between two log lines with the number of further ones


class Refusals:
    """Collects refusals in memory; `take` returns the number to add in Redis. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: set[str] = set()
        self._num = self._num_unlogged = 0
        self._logged_at = time.monotonic()

    def note(self, kind: str, found: object = b"", *, num: int = 1) -> None:
        """Note a refusal. For the first of its kind, `found` is logged, shortened and escaped."""
        with self._lock:
            self._num += num
            is_new = kind not in self._kinds and len(self._kinds) < MAX_KINDS
            if is_new:
                self._kinds.add(kind)
            self._num_unlogged += num - is_new
        if is_new:
            log.error("refused: %s%s", kind, _excerpt(found))

    def take(self) -> int:
        """The number of refusals since the last call."""
        with self._lock:
            num, self._num = self._num, 0
            num_unlogged = 0
            if self._num_unlogged and time.monotonic() - self._logged_at >= AGAIN_S:
                num_unlogged, self._num_unlogged, self._logged_at = self._num_unlogged, 0, time.monotonic()
        if num_unlogged:
            log.error("refused: %d more of what was refused before", num_unlogged)
        return num

    def put_back(self, num: int) -> None:
        """Add back a number that could not be counted in Redis."""
        with self._lock:
            self._num += num


def _excerpt(found: object) -> str:
    """The start of refused data, escaped so that it cannot affect a terminal or a log."""
    if not isinstance(found, bytes | str) or not found:
        return ""
    text = ascii(found[:EXCERPT])
    return f": {text}{' …' if len(found) > EXCERPT else ''}"
