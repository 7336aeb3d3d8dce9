"""One component that `merlin doctor` has looked at."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Status = Literal["ok", "warning", "broken", "absent"]


class Finding(Struct, frozen=True, kw_only=True):
    """One component: is it there, of which version, how fast, and is anything wrong?

    status: ok, warning (it works, but read the hint), broken, or absent (not needed for what is configured).
    """

    component: str
    status: Status
    detail: str
    hint: str = ""
    version: str = ""
    latency_ms: float | None = None


def warning_if(hint: str, component: str, detail: str, *, latency_ms: float | None = None) -> Finding:
    """A warning if there is a hint what to do, else all is well."""
    status: Status = "warning" if hint else "ok"
    return Finding(component=component, status=status, detail=detail, hint=hint, latency_ms=latency_ms)


def broken_if(hint: str, component: str, detail: str, *, version: str = "") -> Finding:
    """Broken if there is a hint what to do, else all is well."""
    status: Status = "broken" if hint else "ok"
    return Finding(component=component, status=status, detail=detail, hint=hint, version=version)
