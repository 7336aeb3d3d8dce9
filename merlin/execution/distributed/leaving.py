"""The end of a worker: it takes nothing new, and its chunks end or are given back within a time limit."""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from merlin.errors import ExecutionError, RedisFullError, RedisUnreachableError

log = logging.getLogger("merlin.worker")

T = TypeVar("T")
LEASE_S = 60.0
RETRY_S = 1.0  # between two tries to reach Redis
LOG_AGAIN_S = 30.0  # between two log lines that it does not answer
STOP_GRACE_S = 10.0  # after SIGTERM, for chunks to end by themselves; then they are interrupted,
INTERRUPT_S = 10.0  # and after this killed
LAST_S = 4.0  # then, for everything else; after this the process is ended


def lease_s() -> float:
    """Seconds of a lease: 60, or MERLIN_LEASE_S."""
    return max(1.0, _seconds("MERLIN_LEASE_S", LEASE_S))


def _seconds(variable: str, default: float) -> float:
    """The value of an environment variable in seconds. Raises ExecutionError if it is not such a number."""
    text = os.environ.get(variable, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ExecutionError(f"{variable} must be seconds, not {text!r}")
    return value


class Leaving:
    """The state of a worker's shutdown: whether it leaves, and within which time."""

    def __init__(self) -> None:
        self.is_leaving = False  # the worker takes no further chunk
        self.is_patient = False  # it waits without limit for its chunks
        self.out_of_time = threading.Event()  # from then on nothing waits for Redis
        self._grace_s = _seconds("MERLIN_STOP_GRACE_S", STOP_GRACE_S)
        self._has_time_limit = False

    def leave(self) -> None:
        """End this worker in Celery's own way, as SIGTERM does."""
        os.kill(os.getpid(), signal.SIGTERM)

    def begin(
        self, is_busy: Callable[[], bool], interrupt: Callable[[], None], kill: Callable[[], None]
    ) -> None:
        """Begin the shutdown after SIGTERM or a command: take nothing new, and interrupt chunks after a grace period.

        A second call ends the patience of a worker that waits without limit.
        """
        if self.is_leaving:
            self.is_patient = False
        self.is_leaving = True
        if not (self.is_patient or self._has_time_limit):
            self._has_time_limit = True
            args = (is_busy, interrupt, kill)
            threading.Thread(target=self._enforce_time_limits, args=args, name="hurry", daemon=True).start()

    def _enforce_time_limits(
        self, is_busy: Callable[[], bool], interrupt: Callable[[], None], kill: Callable[[], None]
    ) -> None:
        """End the worker in time, even if Redis, the broker, a file system or a task hangs."""
        interrupt_at = time.monotonic() + self._grace_s
        kill_at = interrupt_at + INTERRUPT_S
        _wait_while(is_busy, interrupt_at)
        interrupt()
        _wait_while(is_busy, kill_at)
        kill()
        time.sleep(max(0.0, kill_at - time.monotonic()))
        self.out_of_time.set()
        time.sleep(LAST_S)
        self.end()

    def end(self) -> None:
        """End this process at once."""
        log.critical("the worker hangs; it ends now, and others take over what it held; it was here:")
        faulthandler.dump_traceback(file=2)  # the real standard error; Celery has replaced `sys.stderr`
        os._exit(os.EX_TEMPFAIL)

    def retry_until(self, ask: Callable[[], T], is_wanted: Callable[[], bool] = lambda: True) -> T:
        """Call `ask`, which needs Redis, until Redis answers.

        Raises StudyGoneError, or the last error when `is_wanted` is false or the worker must end.
        """
        logged_at = -math.inf
        while True:
            try:
                return ask()
            except (RedisUnreachableError, RedisFullError) as error:
                if not is_wanted() or self.out_of_time.is_set():
                    raise
                if time.monotonic() - logged_at >= LOG_AGAIN_S:
                    logged_at = time.monotonic()
                    log.warning("%s", error)
                self.out_of_time.wait(RETRY_S)


def _wait_while(is_busy: Callable[[], bool], deadline: float) -> None:
    while is_busy() and time.monotonic() < deadline:
        time.sleep(0.1)
