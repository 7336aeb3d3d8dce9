"""How the runs of a study began and ended, by the events of its ledger."""

from __future__ import annotations

from typing import Protocol

from merlin.ledger.records import EventRecord

EXECUTOR = "celery"  # in the event of a run that was published


class HasEvents(Protocol):
    """A replay, or the facts of a ledger."""

    def events(self) -> list[EventRecord]:
        """The events of all runs, run by run in order of time."""


def runs_of(events: list[EventRecord]) -> list[EventRecord]:
    """The events that say how runs began and ended."""
    return [event for event in events if event.kind.startswith("run_")]


def is_published(state: HasEvents) -> bool:
    """True if the last run was handed to workers on other machines, and its end is not in the ledger yet."""
    start = _open_start(state)
    return start is not None and start.data.get("executor") == EXECUTOR


def is_open(state: HasEvents) -> bool:
    """True if the last run was one of a command, and its end is not in the ledger: it runs, or was killed."""
    start = _open_start(state)
    return start is not None and start.data.get("executor") != EXECUTOR


def pid_of_run(state: HasEvents) -> int | None:
    """The process of the last run, if it was one of a command, and its end is not in the ledger."""
    start = _open_start(state)
    return start.data.get("pid") if start is not None and start.data.get("executor") != EXECUTOR else None


def end_of_run(state: HasEvents) -> str | None:
    """Why the last run ended before its end, as it said itself; None if it did not."""
    runs = runs_of(state.events())
    return str(runs[-1].data.get("reason", "")) if runs and runs[-1].kind == "run_stopped" else None


def was_published(state: HasEvents) -> bool:
    """True if the last run was handed to workers on other machines, even if it has ended."""
    starts = [e for e in state.events() if e.kind == "run_started"]
    return bool(starts) and starts[-1].data.get("executor") == EXECUTOR


def _open_start(state: HasEvents) -> EventRecord | None:
    """How the last run began; None if its end is in the ledger, or if there was none."""
    runs = runs_of(state.events())
    return runs[-1] if runs and runs[-1].kind == "run_started" else None
