"""Waits for other processes, threads or files: until a condition holds, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

LIMIT_S = 120.0  # enough on a busy machine; only a failing test reaches it
POLL_S = 0.01  # between two looks, at least
MAX_POLL_S = 1.0
SHARE = 12  # a pause takes so many times as long as the look before it: other tests need the cores


class Process(Protocol):
    """The part of `subprocess.Popen` that tells why a process has ended."""

    @property
    def returncode(self) -> int | Any: ...

    def poll(self) -> int | None: ...

    def communicate(self) -> Any: ...


def wait_until(
    condition: Callable[[], Any],
    about: Process | Callable[[], object] | None = None,
    limit_s: float = LIMIT_S,
) -> Any:
    """The first true value of the condition.

    `about` is a process that has to live until then, or a function that returns what a failure should show.
    """
    deadline = time.monotonic() + limit_s
    while True:
        began = time.monotonic()
        if found := condition():
            return found
        pause_s = min(MAX_POLL_S, max(POLL_S, SHARE * (time.monotonic() - began)))
        if about is not None and not callable(about):
            assert about.poll() is None, f"it ended with {about.returncode}: {about.communicate()}"
        if time.monotonic() > deadline:
            state = about() if callable(about) else ""
            raise AssertionError(f"waited {limit_s:g} s in vain {state}")
        time.sleep(pause_s)
