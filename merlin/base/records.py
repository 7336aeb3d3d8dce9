"""Records as JSON: frozen dataclasses out of plain objects and back, checked by msgspec."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_met: set[type] = set()
_meeting = threading.Lock()


def to_plain(value: object) -> Any:
    """A record, or records inside lists and mappings, as objects that JSON knows."""
    return msgspec.to_builtins(value)


def as_kind(data: object, kind: type[T], *, strict: bool = True) -> T:
    """The record that plain objects make. Raises msgspec.ValidationError, which is a ValueError."""
    if kind not in _met:
        with (
            _meeting
        ):  # two threads that let msgspec meet a type at the same moment end the process (SIGSEGV)
            with suppress(msgspec.ValidationError):
                msgspec.convert(None, kind)
            _met.add(kind)
    return msgspec.convert(data, kind, strict=strict)


def parsed(text: str | bytes) -> Any:
    """The value in a JSON text. Raises ValueError, and nothing else."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
