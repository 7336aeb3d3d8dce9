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
from merlin.execution.walltime import MARGIN_S, Walltime

log = logging.getLogger("merlin.worker")

T = TypeVar("T")
LEASE_S = 60.0
RETRY_S = 1.0  # between two tries to reach Redis
LOG_AGAIN_S = 30.0  # between two log lines that it does not answer
STOP_GRACE_S = 10.0  # after SIGTERM, for chunks to end by themselves; then they are interrupted,
INTERRUPT_S = 10.0  # and after this killed
LAST_S = 4.0  # then, for everything else; after this the process is ended
# at the end of the walltime, tasks run until `walltime.MARGIN_S` before it; then the same follows in less time:
KILL_BEFORE_S, LAST_BEFORE_S = 3.0, 2.0
LEAVE_BEFORE_S = 1.0  # before chunks are interrupted: it takes nothing new
AGAIN_S = 2.0  # a signal that comes twice in this time counts once: the scheduler sends it, and a parent passes it on
POLL_S = 0.1


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

    def __init__(self, walltime: Walltime) -> None:
        self._walltime = walltime
        self._is_warned = False  # its chunks have the rest of the walltime
        self._is_hurried = False  # they have no time any more
        self._began = math.inf  # when it was first asked to leave
        self.is_leaving = False  # the worker takes no further chunk
        self.is_patient = False  # it waits without limit for its chunks
        self.out_of_time = threading.Event()  # from then on nothing waits for Redis
        self._grace_s = _seconds("MERLIN_STOP_GRACE_S", STOP_GRACE_S)
        self._has_time_limit = False

    def leave(self) -> None:
        """End this worker in Celery's own way, as SIGTERM does."""
        os.kill(os.getpid(), signal.SIGTERM)

    def must_leave(self) -> bool:
        """Whether the walltime is about to end."""
        return self._walltime.left_s() <= LEAVE_BEFORE_S

    def warn(self) -> None:
        """End this worker, because its scheduler will end it soon. Chunks may use the rest of the walltime."""
        self._is_warned = True
        self.leave()

    def begin(
        self, is_busy: Callable[[], bool], interrupt: Callable[[], None], kill: Callable[[], None]
    ) -> None:
        """Begin the shutdown after SIGTERM or a command: take nothing new, and interrupt chunks after a grace period.

        A second call ends the patience of a worker that waits without limit, or the grace period of another one.
        """
        now = time.monotonic()
        if self.is_leaving:
            self._is_hurried = self._has_time_limit and not self.is_patient and now - self._began >= AGAIN_S
            self.is_patient = False
        else:
            self._began = now
        self.is_leaving = True
        if not self._has_time_limit and (not self.is_patient or self._walltime.left_s() < math.inf):
            self._has_time_limit = True
            args = (is_busy, interrupt, kill)
            threading.Thread(target=self._enforce_time_limits, args=args, name="hurry", daemon=True).start()

    def _enforce_time_limits(
        self, is_busy: Callable[[], bool], interrupt: Callable[[], None], kill: Callable[[], None]
    ) -> None:
        """End the worker in time, even if Redis, the broker, a file system or a task hangs."""
        began = time.monotonic()
        while (is_busy() or self.is_patient) and not self._is_out_of_grace(began):
            if self.is_patient:
                began = time.monotonic()
            time.sleep(POLL_S)
        interrupt()
        has_end = self._walltime.left_s() < math.inf
        # without an end, infinite seconds are left
        kill_s = min(INTERRUPT_S, max(0.0, self._walltime.left_s() + MARGIN_S - KILL_BEFORE_S))
        kill_at = time.monotonic() + kill_s
        while is_busy() and time.monotonic() < kill_at:
            time.sleep(POLL_S)
        kill()
        time.sleep(max(0.0, kill_at - time.monotonic()))
        self.out_of_time.set()
        time.sleep(min(LAST_S, LAST_BEFORE_S) if has_end else LAST_S)
        self.end()

    def _is_out_of_grace(self, began: float) -> bool:
        """Whether chunks are to be interrupted now."""
        left_s = self._walltime.left_s()
        if self._is_hurried or left_s <= 0:
            return True
        if self.is_patient or (self._is_warned and left_s < math.inf):
            return False
        return time.monotonic() - began >= self._grace_s

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
