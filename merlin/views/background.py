"""Asks in a thread for an answer that takes time; the last answer is shown meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Asks again when the last answer is old. Any thread may use it."""

    def __init__(self, ask: Callable[[], T], *, every_s: float, times_as_long: float) -> None:
        """`ask` may take seconds; then it rests for `every_s`, or `times_as_long` its duration if that is more."""
        self._ask, self._every_s, self._times_as_long = ask, every_s, times_as_long
        self._changed = threading.Condition()
        self._is_asking = False
        self._due = 0.0
        self._answer: T | None = None

    def latest(self, wait_s: float = 0.0) -> T | None:
        """The last answer. Without one, wait up to `wait_s` seconds for the first; None: there is still none."""
        with self._changed:
            if not self._is_asking and time.monotonic() >= self._due:
                self._is_asking = True
                threading.Thread(target=self._run, name="ask", daemon=True).start()
            if self._answer is None and wait_s > 0:
                self._changed.wait_for(lambda: not self._is_asking, wait_s)
            return self._answer

    def _run(self) -> None:
        began, answer = time.monotonic(), None
        try:
            answer = self._ask()
        finally:
            with self._changed:
                now = time.monotonic()
                self._due = now + max(self._every_s, self._times_as_long * (now - began))
                self._is_asking = False
                if answer is not None:
                    self._answer = answer
                self._changed.notify_all()

    def again(self) -> None:
        """Ask anew with the next call, because the last answer may have changed."""
        with self._changed:
            self._due = 0.0

    def forget(self) -> None:
        """Drop the last answer, which is wrong now, and ask anew with the next call."""
        with self._changed:
            self._due, self._answer = 0.0, None
