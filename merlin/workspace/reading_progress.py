"""Tells whoever waits how far the reading of a samples file is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

OnRead = Callable[[int, int], None]  # rows so far, in all

_on_read: ContextVar[OnRead | None] = ContextVar("on_read", default=None)


@contextmanager
def reading_watched(on_read: OnRead) -> Iterator[None]:
    """Let `on_read` know of all samples that this thread reads in the block."""
    token = _on_read.set(on_read)
    try:
        yield
    finally:
        _on_read.reset(token)


@contextmanager
def reading_part(first: int, total: int) -> Iterator[None]:
    """What is read in the block are rows from `first` on, of `total`."""
    if (on_read := _on_read.get()) is None:
        yield
        return
    with reading_watched(lambda done, _: on_read(first + done, total)):
        yield


def report_read(done: int, total: int) -> None:
    """Say how many rows were read so far."""
    if (on_read := _on_read.get()) is not None:
        on_read(done, total)
