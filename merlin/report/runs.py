"""The runs of a study: each time that somebody began it or went on with it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from merlin.ledger.replay import Replay
from merlin.status.snapshot import EXECUTOR
from merlin.workspace.directory import Workspace

_ENDS = {"run_finished": "to its end", "run_stopped": "stopped", "run_failed": "broke"}


class StudyRun(Struct, frozen=True, kw_only=True):
    """One run."""

    member: str  # "extensions/001"; "" for the study itself
    started: float
    ended: float | None  # None: it is alive, or was killed
    where: str  # "4 worker processes on node1", "workers, published on node1"
    end: str  # "to its end", "stopped: interrupted"; "" if it left no word


def study_runs(studies: Sequence[tuple[Workspace, Replay]]) -> tuple[StudyRun, ...]:
    """The runs of a study and its extensions, the oldest first."""
    found = [run for study, replay in studies for run in _runs(study, replay)]
    return tuple(sorted(found, key=lambda run: run.started))


def _runs(study: Workspace, replay: Replay) -> list[StudyRun]:
    runs: list[StudyRun] = []
    for event in replay.events():
        if event.kind == "run_started":
            host = str(event.data.get("host", event.host))
            if event.data.get("executor") == EXECUTOR:
                where = f"workers, published on {host}"
            else:
                num = int(event.data.get("workers", 0))
                where = f"{num} worker process{'es' * (num != 1)} on {host}"
            runs.append(
                StudyRun(member=study.member, started=event.time or 0.0, ended=None, where=where, end="")
            )
        elif event.kind in _ENDS and runs and runs[-1].ended is None:
            reason = str(event.data.get("reason", ""))
            end = f"{_ENDS[event.kind]}: {reason}" if reason else _ENDS[event.kind]
            runs[-1] = replace(runs[-1], ended=event.time, end=end)
    return runs
