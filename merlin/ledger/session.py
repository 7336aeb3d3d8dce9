"""Names of sessions. A session is one run of a study: every writer of the run puts its name into its segments.

Records of a later session replace those of an earlier one. The name of a session holds the time when it began, because
the clocks of several machines may differ. If a name holds no time, the earliest header of the session counts.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path

from merlin.ledger.format import Writer
from merlin.ledger.segments import segments

_MARK = "at"
_LATER_S = 0.001


def make_session(began: float) -> str:
    """A name for a session that began at `began` (epoch seconds, on the clock that all its machines share)."""
    return f"{_MARK}{began:.6f}-{secrets.token_hex(4)}"


def session_start(session: str, written: float) -> float:
    """Return when a session began, in epoch seconds; `written` is the time in a header, for names without one."""
    if not session.startswith(_MARK):
        return written
    try:
        return float(session[len(_MARK) :].partition("-")[0])
    except ValueError:
        return written


class SessionStarts:
    """When the sessions of some writers began."""

    def __init__(self) -> None:
        self._starts: dict[str, float] = {}

    def add(self, writers: Iterable[Writer]) -> None:
        for writer in writers:
            began = session_start(writer.session, writer.started)
            self._starts[writer.session] = min(self._starts.get(writer.session, began), began)

    def of(self, writer: Writer) -> float:
        """The start of a writer's session: the clocks of machines may differ, this is the same for all of them."""
        return self._starts[writer.session] if writer.session else writer.started

    def has_later(self, session: str) -> bool:
        """Return whether another session has begun since this one did."""
        began = session_start(session, 0.0)
        return any(name and start > began for name, start in self._starts.items())


def last_session(directory: Path) -> str:
    """The name of the session that began last; "" for a ledger without any."""
    writers = [writer for _, header in segments(directory) for writer in header.writers]
    named = (writer for writer in writers if writer.session)
    latest = max(named, key=lambda w: session_start(w.session, w.started), default=None)
    return "" if latest is None else latest.session


def next_session(directory: Path, now: float) -> str:
    """A name for a session that is later than all in the ledger, even if the clock that gave `now` was set back."""
    writers = [writer for _, header in segments(directory) for writer in header.writers]
    latest = max((session_start(w.session, w.started) for w in writers), default=0.0)
    return make_session(max(now, latest + _LATER_S))
