"""Reads the environment of a job; a variable with an invalid number counts as not set. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

_MOST = 1_000_000_000


def read_count(environment: Mapping[str, str], *names: str) -> int | None:
    """The first of these variables that is a whole number; None if none is."""
    for name in names:
        text = environment.get(name, "").strip()
        if text.isascii() and text.isdecimal() and len(text) < 12 and int(text) < _MOST:
            return int(text)
    return None


def read_time(environment: Mapping[str, str], name: str) -> float | None:
    """Epoch seconds; None if the variable does not say them."""
    text = environment.get(name, "").strip()
    is_time = text.isascii() and text.isdecimal() and 9 <= len(text) < 12
    return float(text) if is_time else None


def without(environment: Mapping[str, str], patterns: Sequence[str]) -> dict[str, str]:
    """The environment without the variables that have such names; "X_*" is every name that begins with "X_"."""
    return {
        name: value
        for name, value in environment.items()
        if not any(fnmatchcase(name, pattern) for pattern in patterns)
    }
