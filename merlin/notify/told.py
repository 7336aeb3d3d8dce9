"""The record of sent notices, in the ledger, so that a later owner or restart does not send them again."""

from __future__ import annotations

from typing import Any

from merlin.ledger.replay import Replay
from merlin.notify.occasions import Occasion, Told

NOTIFIED = "notified"  # the event that a notice was sent, or could not be sent


def record_of(occasion: Occasion, channel: str, error: str) -> dict[str, Any]:
    """The data of the event, without addresses, which may be secret."""
    return {
        "rule": occasion.rule,
        "event": occasion.event,
        "mark": occasion.mark,
        "channel": channel,
        "error": error,
    }


def told_of(found: Replay) -> Told:
    """The notices of the last run, and the rules that have ever sent a notice of failures."""
    in_run: set[Occasion] = set()
    of_failures: set[int] = set()
    for event in found.events():
        if event.kind == "run_started":
            in_run = set()
        elif event.kind == NOTIFIED:
            said = Occasion(int(event.data["rule"]), str(event.data["event"]), str(event.data["mark"]))
            in_run.add(said)
            if said.event == "failures":
                of_failures.add(said.rule)
    return Told(frozenset(in_run), frozenset(of_failures))
