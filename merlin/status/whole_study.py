"""The state of a study with its extensions, from their snapshots. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from merlin.base.text import count
from merlin.status.snapshot import KILLED, Snapshot, State


def state_of(snapshots: Sequence[Snapshot]) -> tuple[State, str]:
    """The state of a study with its extensions, and why it is so."""
    for state in ("running", "stalled", "unknown"):
        for snapshot in snapshots:
            if snapshot.state == state:
                return snapshot.state, snapshot.state_reason
    if all(snapshot.state == "new" for snapshot in snapshots):
        return "new", "it has not been run yet"
    missing = [snapshot for snapshot in snapshots if snapshot.totals.missing]
    if missing:
        broken = next((s for s in missing if s.state == "failed"), None)
        last = broken or missing[-1]
        return ("failed" if broken else "stopped"), _why_stopped(last)
    failed = sum(snapshot.totals.failed for snapshot in snapshots)
    skipped = sum(snapshot.totals.skipped for snapshot in snapshots)
    if not failed and not skipped:
        return "finished", ""
    said = [f"{count(failed, 'task')} failed"] if failed else []
    if skipped:
        said.append(f"{count(skipped, 'task')} {'was' if skipped == 1 else 'were'} skipped")
    return "failed", ", ".join(said)


def _why_stopped(snapshot: Snapshot) -> str:
    left = count(snapshot.totals.missing, "task")
    if snapshot.stop_reason == KILLED:
        return f"the last run ended without a word, as if it had been killed; {left} missing"
    if snapshot.stop_reason:
        return f"{snapshot.stop_reason}; {left} missing"
    return f"{left} missing, and no run is alive"
