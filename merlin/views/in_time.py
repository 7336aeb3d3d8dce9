"""Asks somebody who may hang, and waits only so long for the answer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from merlin.errors import ExecutionError

T = TypeVar("T")


def in_time(ask: Callable[[], T], limit_s: float, who: str) -> T:
    """The answer of `ask`, which runs in a thread of its own.

    Raises what `ask` raises, and ExecutionError if it takes longer; the thread is left behind then.
    """
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((ask(), None))
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            answers.put((None, error))

    threading.Thread(target=run, name=f"ask {who}", daemon=True).start()
    try:
        answer, error = answers.get(timeout=limit_s)
    except queue.Empty:
        raise ExecutionError(f"{who} did not answer within {limit_s:g} s") from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]
