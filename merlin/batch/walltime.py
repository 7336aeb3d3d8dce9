"""Walltimes and times: what users and schedulers write, as seconds, and back. Pure."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

_SPAN = re.compile(r"(\d+(?:\.\d*)?)\s*(s|m|min|h|d)?", re.ASCII)
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_CLOCK = re.compile(
    r"(?:(?P<days>\d+)[-:])?(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+(?:\.\d*)?)", re.ASCII
)
_SHORT_CLOCK = re.compile(r"(?P<minutes>\d+):(?P<seconds>\d+(?:\.\d*)?)", re.ASCII)
_DAYS_HOURS = re.compile(r"(?P<days>\d+)-(?P<hours>\d+)(?::(?P<minutes>\d+))?", re.ASCII)
_WITHOUT_LIMIT = {"inf", "infinite", "infinity", "unlimited"}
_FIELD_S = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
_MOST_S = 10 * 365 * 86400.0  # more than any scheduler grants, and no overflow anywhere


def walltime_seconds(value: str | int | float) -> float | None:
    """The seconds of ``HH:MM:SS``, ``MM:SS``, ``D-HH:MM:SS``, ``D-HH:MM``, ``90m`` or a number; None: no limit.

    Raises ValueError for anything else, and for a time of zero.
    """
    text = str(value).strip().lower()
    if text in _WITHOUT_LIMIT:
        return None
    if match := _SPAN.fullmatch(text):
        seconds = float(match[1]) * _UNITS[match[2] or "s"]
    elif match := _CLOCK.fullmatch(text) or _SHORT_CLOCK.fullmatch(text) or _DAYS_HOURS.fullmatch(text):
        seconds = sum(float(part) * _FIELD_S[name] for name, part in match.groupdict().items() if part)
    else:
        raise ValueError(f'{text[:60]!r} is not a walltime; write "HH:MM:SS"')
    if not 0 < seconds <= _MOST_S:
        raise ValueError(f"a walltime of {text[:60]!r} is not possible")
    return seconds


def epoch_seconds(text: str, pattern: str) -> float | None:
    """The epoch seconds of a time in UTC, written as a pattern of `strptime` says; None for anything else."""
    try:
        return datetime.strptime(text, pattern).replace(tzinfo=UTC).timestamp()
    except (ValueError, TypeError):
        return None


def as_clock(seconds: float) -> str:
    """``HH:MM:SS``, rounded up: Slurm, PBS."""
    whole = math.ceil(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def as_hours_and_minutes(seconds: float) -> str:
    """``HH:MM``, rounded up: LSF."""
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def as_seconds(seconds: float) -> str:
    """``1800s``, rounded up: Flux."""
    return f"{math.ceil(seconds)}s"
