"""The end of the allocation that a process lives in, and what still fits in before it."""

from __future__ import annotations

import math
import signal
import time
from types import FrameType

WARNINGS = (signal.SIGTERM, signal.SIGUSR1)
MARGIN_S = 6.0  # before the end: for interrupts, last records and reports


class Walltime:
    """The time that is left, measured by the monotonic clock, which nobody can set."""

    def __init__(self, ends: float | None = None) -> None:
        """`ends`: epoch seconds; None: there is no end."""
        self._ends = math.inf if ends is None else time.monotonic() + ends - time.time()

    @property
    def ends(self) -> float | None:
        """The end in epoch seconds of this host's clock; None if there is none."""
        return None if self._ends == math.inf else self._ends - time.monotonic() + time.time()

    def left_s(self) -> float:
        """Seconds in which tasks may run; negative when they are to be interrupted."""
        return self._ends - MARGIN_S - time.monotonic()

    def has_time_for(self, need_s: float) -> bool:
        """Whether a task that may take `need_s` seconds (0: not known) can end in time."""
        return need_s <= self.left_s()


class Warnings:
    """The signals by which a scheduler warns all processes of a job, the user's tasks among them.

    The process that started this one decides what follows. Here they only tell why a task has ended badly.
    """

    def __init__(self) -> None:
        self._last = -math.inf  # epoch seconds

    def listen(self) -> None:
        """Note the signals from now on. Tasks do not inherit this."""
        for number in WARNINGS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._last = time.time()

    def came_since(self, started: float, *, wait_s: float) -> bool:
        """Whether a signal came since `started` (epoch seconds); it may reach us after it has killed a task."""
        deadline = time.monotonic() + wait_s
        while self._last < started and time.monotonic() < deadline:
            time.sleep(0.02)
        return self._last >= started
