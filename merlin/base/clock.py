"""The time of day as records note it, in ISO 8601 to the second."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """ "2026-11-28T23:54:42+00:00"."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def local_now() -> str:
    """ "2026-11-29T00:54:42+01:00", in the time zone of this machine."""
    return datetime.now(UTC).astimezone().isoformat(timespec="seconds")
