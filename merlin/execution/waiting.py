"""Wait for a process, a deadline or the controller's message to stop, whichever comes first."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

_IGNORE_WAKE_S = 0.2  # for so long further wake-ups are ignored after one that did not mean "stop"


def is_readable(fd: int, wait_s: float | None = 0.0) -> bool:
    """Return whether a descriptor becomes readable in time; None: there is no limit.

    A pidfd becomes readable when its process has ended.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if wait_s is None else 1000 * max(0.0, wait_s)))


class Waiter:
    """Waits for descriptors. `stopped` becomes true, and stays true, when the controller wants to stop."""

    def __init__(self, should_stop: Callable[[], bool], wake_fd: int | None) -> None:
        self._should_stop = should_stop
        self._wake_fd = wake_fd
        self._ignore_wake_until = 0.0
        self._stopped = False

    @property
    def stopped(self) -> bool:
        self._stopped = self._stopped or self._should_stop()
        return self._stopped

    def wait(self, fd: int, timeout_s: float | None, events: int = select.POLLIN) -> bool:
        """Wait until `fd` is readable, the time is over, or work must stop. Returns True if `fd` is readable.

        With `events` 0 only the closing of the other end counts.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            ignores_wake = now < self._ignore_wake_until
            ends = [] if deadline is None else [deadline]
            limit = min([*ends, self._ignore_wake_until] if ignores_wake else ends, default=None)
            poll = select.poll()
            poll.register(fd, events)
            if self._wake_fd is not None and not ignores_wake:
                poll.register(self._wake_fd, select.POLLIN)
            found = poll.poll(None if limit is None else max(0.0, limit - now) * 1000 + 0.5)
            ready = [descriptor for descriptor, _ in found]
            if fd in ready:
                return True
            if self._wake_fd in ready:
                if self.stopped:
                    return False
                self._ignore_wake_until = time.monotonic() + _IGNORE_WAKE_S
            elif deadline is not None and time.monotonic() >= deadline:
                return False
