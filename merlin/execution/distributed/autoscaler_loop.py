"""The loop of autoscaling: one round after another, until the work is done and the jobs have gone."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from merlin.base.locks import LockTaken, locked
from merlin.batch.autoscale import Finish, Move, Wait
from merlin.errors import WorkspaceError
from merlin.execution.distributed.autoscaler import Autoscaler
from merlin.execution.distributed.worker_jobs import AUTOSCALE_LOCK
from merlin.execution.refusal_notices import RefusalNotices

LOOK_S = 2.0  # between two rounds; the scheduler is asked less often
HURRIED_S = 0.2  # the same while a probe runs, near the end of the work, and after it
MAX_PAUSE_S = 20.0
SHARE = 0.05  # the share of its time that it may spend on looking
HURRIED_SHARE = 0.25  # the same while a probe runs, near the end of the work, and after it
SAY_AGAIN_S = 600.0


class Decision(Struct, frozen=True):
    """A move that was made, or why none was."""

    time: float  # epoch seconds
    move: Move

    def to_line(self) -> str:
        """One line of JSON, as in the file of decisions."""
        return json.dumps({"time": self.time, "move": type(self.move).__name__.lower(), **asdict(self.move)})


class Diary:
    """Keeps decisions as JSON lines, and tells them; an unchanged reason to wait is rarely repeated."""

    def __init__(self, path: Path, tell: Callable[[Decision], None]) -> None:
        self._path, self._tell = path, tell
        self._last, self._told_at = "", 0.0

    def note(self, move: Move) -> None:
        now = time.time()
        key = re.sub(r"\d[\d.,]*( min| h| s)?", "#", move.reason)
        if isinstance(move, Wait):
            if key == self._last and now - self._told_at < SAY_AGAIN_S:
                return
            self._last, self._told_at = key, now
        else:
            self._last = ""
        decision = Decision(now, move)
        with self._path.open("a", encoding="utf-8") as file:  # whose last line is read to explain a wait
            file.write(decision.to_line() + "\n")
        self._tell(decision)


def scale_to_end(
    scaler: Autoscaler, folder: Path, diary: Diary, notices: RefusalNotices, wait: Callable[[float], object]
) -> Finish:
    """Submit and end jobs until nothing is left to do; returns the last move.

    `folder` has the records of the jobs. `wait` waits for at most so many seconds, or until a study is over.
    Raises WorkspaceError if another autoscaler has the jobs; else as `Autoscaler.round`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder / AUTOSCALE_LOCK):
            return _rounds(scaler, diary, notices, wait)
    except LockTaken as holder:
        raise WorkspaceError(f"another merlin workers autoscale has the jobs in {folder}: {holder}") from None


def _rounds(
    scaler: Autoscaler, diary: Diary, notices: RefusalNotices, wait: Callable[[float], object]
) -> Finish:
    while True:
        began = time.monotonic()
        moves = scaler.round()
        notices.look(scaler.refusal)
        for move in moves:
            diary.note(move)
            if isinstance(move, Finish):
                notices.look(move.reason if move.is_failure and not scaler.refusal else "")
                notices.wait()
                return move
        pause = wait if scaler.is_hurried else time.sleep
        pause(pause_s(time.monotonic() - began, is_hurried=scaler.is_hurried))


def pause_s(round_s: float, *, is_hurried: bool) -> float:
    """Seconds until the next round: more after a long round, which read a long ledger or met a slow server."""
    least_s, share = (HURRIED_S, HURRIED_SHARE) if is_hurried else (LOOK_S, SHARE)
    return min(MAX_PAUSE_S, max(least_s, round_s / share))
