"""Threads for what may hang, such as a file system or a server: one lane cannot hold up another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from merlin.base.processes import give_way
from merlin.errors import MerlinError

T = TypeVar("T")

MOST_WAITING = 64  # of one lane
IDLE_S = 30.0  # before a thread that has nothing to do ends


class SlowError(MerlinError):
    """An answer took longer than anybody waits."""


class BusyError(MerlinError):
    """Too much is asked at the same time."""


class Lane:
    """A thread that does one thing after another; it starts when there is something to do.

    It is a daemon thread: work that hangs for ever does not keep the process from ending. Computations on this machine
    go first, unless `gives_way` is False.
    """

    def __init__(self, name: str, *, gives_way: bool = True) -> None:
        self.name = name
        self._gives_way = gives_way
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._num_waiting = 0  # including the work that is being done
        self._has_thread = False

    @property
    def is_busy(self) -> bool:
        return self._num_waiting > 0

    async def run(self, work: Callable[[], T], limit_s: float | None = None) -> T:
        """The result of `work`, however long it takes if there is no limit.

        Raises SlowError after `limit_s` seconds (what has begun is done to its end, what has not is dropped), and
        BusyError if too much waits.
        """
        future = self._submit(work)
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), limit_s)
        except TimeoutError:
            if not future.done():
                raise SlowError(
                    f"{self.name} gave no answer within {limit_s:g} s; its file system or a server may hang"
                ) from None
            raise
        finally:
            future.cancel()

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._num_waiting >= MOST_WAITING:
                raise BusyError(f"{self.name} is asked too much at the same time; try again in a moment")
            self._num_waiting += 1
            self._work.put((future, work))
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._serve, name=f"lane {self.name}", daemon=True).start()
        return future

    def _serve(self) -> None:
        if self._gives_way:
            give_way()
        while self._do_next():
            pass

    def _do_next(self) -> bool:
        """Do one thing; False if there was nothing to do for a while, so that the thread has to end."""
        try:
            future, work = self._work.get(timeout=IDLE_S)
        except Empty:
            with self._lock:
                self._has_thread = not self._work.empty()
                return self._has_thread
        tell: Callable[[], None] = _nothing
        if future.set_running_or_notify_cancel():
            try:
                tell = partial(future.set_result, work())
            except BaseException as error:  # noqa: BLE001  it is raised where the result is waited for
                tell = partial(future.set_exception, error)
        with self._lock:
            self._num_waiting -= 1  # before the caller gets the result, and may ask for the next thing
        tell()
        return True


def _nothing() -> None:
    pass
