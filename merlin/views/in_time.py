"""Asks somebody who may hang, and waits only so long for the answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from merlin.errors import ExecutionError

T = TypeVar("T")


def in_time(ask: Callable[[], T], limit_s: float, who: str) -> T:
    """The answer of `ask`, which runs in a thread of its own.

    Raises what `ask` raises, and ExecutionError if it takes longer; the thread is left behind then.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            answer.set_exception(error)

    threading.Thread(target=run, name=f"ask {who}", daemon=True).start()
    if not wait([answer], limit_s).done:
        raise ExecutionError(f"{who} did not answer within {limit_s:g} s")
    return answer.result()
