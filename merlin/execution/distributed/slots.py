"""Limits the messages that a worker takes to the chunks that it can run at once."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


class Slots:
    """Counts free slots. To free one wakes Celery's event loop, which polls `fileno`. Threads may share it."""

    def __init__(self, num: int = 1) -> None:
        self.num = num
        self._num_taken = self._num_closed = 0
        self._lock = threading.Lock()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def has_room(self) -> bool:
        return self._num_taken + self._num_closed < self.num

    def take(self) -> None:
        with self._lock:
            self._num_taken += 1

    def free(self) -> None:
        with self._lock:
            self._num_taken -= 1
        os.eventfd_write(self._fd, 1)

    def close(self, num: int) -> None:
        """Do not use `num` of the slots, because the running chunks leave no cores for them."""
        with self._lock:
            is_more, self._num_closed = num < self._num_closed, num
        if is_more:
            os.eventfd_write(self._fd, 1)

    def fileno(self) -> int:
        return self._fd

    def drain(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)
