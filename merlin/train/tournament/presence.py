"""The trainers that take part in a tournament through files, and those that are gone.

Each trainer has a small record, `trainers/<k>.json`, that it replaces when it offers a model or writes a
checkpoint, and touches every few seconds. On the same machine the operating system knows at once if the
process is alive; a trainer on another machine counts as alive if its record was touched lately, by the clock
of the file server, which also stamps the reader's own record.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.files import write_text
from merlin.base.processes import boot_id, start_ticks
from merlin.base.records import FileFormat, as_kind, to_plain
from merlin.shards.format.regular_file import read_json

FORMAT = FileFormat("merlin-presence", 1)
BEAT_S = 5.0
SILENCE_S = 30.0  # of a record on another machine, until its process counts as dead
GRACE_S = 0.25  # in which a trainer that has gone still counts, since all may be ending at this moment

PresenceState = Literal["starting", "training", "finished", "stopped"]


class Presence(Struct, frozen=True):
    """How far a trainer is, and which process it is."""

    trainer: int
    state: PresenceState
    machine: str
    pid: int
    born: int  # clock ticks from the machine's start to the process's
    offered: int = 0  # the newest round that it has offered a model in
    saved: int = 0  # the round after which its newest checkpoint was written


def presence_directory(tournament: Path) -> Path:
    """Where the records of a tournament are, in what it keeps on the disk."""
    return tournament / "trainers"


def read_presence(path: Path) -> Presence | None:
    """The record in a file; None if the trainer never came, or its record cannot be read just now."""
    try:
        data = read_json(path)
        return as_kind(data, Presence) if FORMAT.is_of(data) else None
    except (OSError, ValueError):
        return None


def announce(directory: Path, trainers: Iterable[int]) -> None:
    """Report that this process is about to start these trainers, so that none plays without those that start slowly."""
    for trainer in trainers:
        path = _path(directory, trainer)
        before = read_presence(path)
        _write(path, replace(before or _here(trainer), **_identity(), state="starting"))


def withdraw(directory: Path, trainer: int) -> None:
    """Report that a trainer will not come, if it has not reported anything itself."""
    path = _path(directory, trainer)
    found = read_presence(path)
    if found is not None and found.state == "starting":
        _write(path, replace(found, state="stopped"))


class Participants:
    """The trainers of a tournament as one of them sees them; it is present itself from `enter` to `leave`."""

    def __init__(self, directory: Path, index: int, num: int) -> None:
        self.index, self.num = index, num
        self._directory = directory
        self._mine = _here(index)
        self._over = threading.Event()
        self._beats: threading.Thread | None = None
        self._missed: dict[tuple[int, int, int], float] = {}  # since when a process is gone

    def enter(self) -> None:
        """Announce this trainer, and start to renew its record; offers made before stay known."""
        before = self.look(self.index)
        self._mine = replace(self._mine, offered=0 if before is None else before.offered)
        _write(self._path, self._mine)
        self._beats = threading.Thread(target=self._beat, name="merlin-presence", daemon=True)
        self._beats.start()

    def update(self, **changed: Any) -> None:
        """Report what has changed, as offered=3; a file system that refuses it does not end the run."""
        self._mine = replace(self._mine, **changed)
        with contextlib.suppress(OSError):
            _write(self._path, self._mine)

    def leave(self, state: Literal["finished", "stopped"]) -> None:
        self._over.set()
        if self._beats is not None:
            self._beats.join()
            self.update(state=state)

    def look(self, trainer: int) -> Presence | None:
        return read_presence(_path(self._directory, trainer))

    def is_present(self, found: Presence) -> bool:
        """True if its process lives, as far as one can know, or has only just gone."""
        if found.state == "finished":
            return False
        who = (found.trainer, found.pid, found.born)
        if self._lives(found):
            self._missed.pop(who, None)
            return True
        now = time.monotonic()
        return now < self._missed.setdefault(who, now) + GRACE_S

    def _lives(self, found: Presence) -> bool:
        if found.state == "stopped":
            return False
        if found.machine == self._mine.machine and self._mine.born:
            return start_ticks(found.pid) == found.born
        try:
            touched = _path(self._directory, found.trainer).stat().st_mtime
            return touched > self._path.stat().st_mtime - SILENCE_S
        except OSError:
            return False

    def members(self, number: int) -> list[int]:
        """The trainers that take part in round `number`: are here, have finished, or have been in that round."""
        others = [
            found.trainer
            for found in self._others()
            if found.state == "finished" or found.offered >= number or self.is_present(found)
        ]
        return sorted([self.index, *others])

    def least_saved(self) -> int:
        """The earliest round that one of the present trainers would go back to if it were killed now."""
        present = (found.saved for found in self._others() if self.is_present(found))
        return min(present, default=self._mine.offered)

    def _others(self) -> Iterator[Presence]:
        """The records of the other trainers that have one."""
        seen = (self.look(trainer) for trainer in range(self.num) if trainer != self.index)
        return (found for found in seen if found is not None)

    @property
    def _path(self) -> Path:
        return _path(self._directory, self.index)

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            with contextlib.suppress(OSError):
                os.utime(self._path)


def _identity() -> dict[str, Any]:
    """What identifies this process everywhere: each container has process numbers of its own."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    pid = os.getpid()
    return {"machine": f"{boot_id()} {namespace}", "pid": pid, "born": start_ticks(pid) or 0}


def _here(trainer: int) -> Presence:
    return Presence(trainer, "training", **_identity())


def _path(directory: Path, trainer: int) -> Path:
    return directory / f"{trainer}.json"


def _write(path: Path, presence: Presence) -> None:
    record = {**FORMAT.head(), **to_plain(presence)}
    write_text(path, json.dumps(record) + "\n", durable_name=False)
