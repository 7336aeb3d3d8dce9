"""Ctrl-C and the like, as events of the loop that runs a study."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any


class Interrupts:
    """Counts signals, and wakes the event loop through a socket."""

    def __init__(self) -> None:
        self.count = self.first = 0  # `first`: the number of the first signal
        self.is_hung_up = False  # the terminal is closed, so nothing can be shown any more
        self.wake, self.inner = socket.socketpair()
        self.wake.setblocking(False)
        self.inner.setblocking(False)

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.first = self.first or number
        self.is_hung_up = self.is_hung_up or number == signal.SIGHUP

    def drain(self) -> None:
        """Let `wake` wait for the next signal."""
        with suppress(BlockingIOError):
            self.wake.recv(1024)


@contextmanager
def caught_signals() -> Iterator[Interrupts]:
    """Take over SIGINT, SIGTERM and SIGHUP for the run, if this is the main thread."""
    interrupts = Interrupts()
    # a background job of a script ignores SIGINT, and one under nohup SIGHUP; both must stay ignored
    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    numbers = [n for n in ours if signal.getsignal(n) != signal.SIG_IGN]
    try:
        before: dict[int, Any] = {n: signal.signal(n, interrupts.handle) for n in numbers}
    except ValueError:  # not the main thread: the caller cannot be interrupted by signals
        before = {}
    fd = signal.set_wakeup_fd(interrupts.inner.fileno(), warn_on_full_buffer=False) if before else -1
    try:
        yield interrupts
    finally:
        if before:
            signal.set_wakeup_fd(fd)
        for n, handler in before.items():
            signal.signal(n, handler)
        interrupts.wake.close()
        interrupts.inner.close()
