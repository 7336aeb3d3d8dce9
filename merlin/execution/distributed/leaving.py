"""How a worker ends: it takes nothing new, lets chunks end or gives them back, and is gone in time whatever hangs."""

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
LOG_AGAIN_S = 30.0  # between two complaints that it does not answer
STOP_GRACE_S = 10.0  # after SIGTERM, for chunks to end by themselves; then they are interrupted,
INTERRUPT_S = 10.0  # and after this killed
LAST_S = 4.0  # then, for everything else; a worker that still hangs ends without further ado


def lease_s() -> float:
    """Seconds of a lease: 60, or MERLIN_LEASE_S."""
    return max(1.0, _seconds("MERLIN_LEASE_S", LEASE_S))


def _seconds(variable: str, default: float) -> float:
    """Raises ExecutionError unless the environment variable is a number of seconds, or not there."""
    text = os.environ.get(variable, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ExecutionError(f"{variable} must be seconds, not {text!r}")
    return value


class Leaving:
    """Whether this worker leaves, and how much of a hurry it is in."""

    def __init__(self) -> None:
        self.is_leaving = False  # takes nothing more
        self.is_patient = False  # waits for what runs, however long it takes
        self.out_of_time = threading.Event()  # nobody waits for Redis any more
        self._grace_s = _seconds("MERLIN_STOP_GRACE_S", STOP_GRACE_S)
        self._has_time_limit = False

    def leave(self) -> None:
        """End this worker in Celery's own way, as SIGTERM does."""
        os.kill(os.getpid(), signal.SIGTERM)

    def begin(
        self, is_busy: Callable[[], bool], interrupt: Callable[[], None], kill: Callable[[], None]
    ) -> None:
        """SIGTERM, or a command to stop: nothing new; what runs ends, or is given back after a grace.

        Who is logged_at again has no more time than that, however patient it was logged_at to be at first.
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
        """See to it that the worker is gone in time, whatever hangs: Redis, the broker, a file system, a task."""
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
        """End this worker, whatever it is at."""
        log.critical("the worker hangs; it ends now, and others take over what it held; it was here:")
        faulthandler.dump_traceback(file=2)  # standard error itself; Celery has put its log in its place
        os._exit(os.EX_TEMPFAIL)

    def retry_until(self, ask: Callable[[], T], is_wanted: Callable[[], bool] = lambda: True) -> T:
        """Ask Redis until it answers.

        Raises StudyGoneError, and what it raised last when nobody wants it, or the worker must end.
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
