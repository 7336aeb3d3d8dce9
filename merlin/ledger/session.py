"""Names of sessions. A session is one run of a study: every writer of the run puts its name into its segments.

Records of a later session outrank those of an earlier one. Sessions are ordered by when they began: as the name
says it, for runs on several machines, whose clocks may differ; else by the earliest header of the session.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from merlin.ledger.segments import segments

_MARK = "at"
_LATER_S = 0.001


def make_session(began: float) -> str:
    """A name for a session that began at `began` (epoch seconds, on the clock that all its machines share)."""
    return f"{_MARK}{began:.6f}-{secrets.token_hex(4)}"


def session_start(session: str, written: float) -> float:
    """When a session began, epoch seconds; `written` is what a header's own clock said."""
    if not session.startswith(_MARK):
        return written
    try:
        return float(session[len(_MARK) :].partition("-")[0])
    except ValueError:
        return written


def next_session(directory: Path, now: float) -> str:
    """A name for a session that outranks all in the ledger, even if the clock that says `now` was set back."""
    writers = [writer for _, header in segments(directory) for writer in header.writers]
    latest = max((session_start(w.session, w.started) for w in writers), default=0.0)
    return make_session(max(now, latest + _LATER_S))
