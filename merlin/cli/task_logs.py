"""Prints the logs of tasks, and goes on printing while they grow."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from merlin.base.text import short_name
from merlin.cli.output import print_json, remark
from merlin.views.live import live_study
from merlin.views.logs import FailureLogs, LogFile, TaskLog, TaskLogs
from merlin.workspace.directory import Workspace, shown_together

POLL_S = 0.3
ALIVE_S = 5.0  # between two looks whether the study still runs
BLOCK_BYTES = 1 << 20
SHARED_LINES = 40  # of a worker's log that are shown: most of it is about other samples
SHARED_BYTES = 64 << 10


def show_logs(logs: Iterable[TaskLog], *, as_json: bool) -> int:
    """Print the logs of tasks, each with a heading; returns how many there were."""
    if as_json:
        listed = [
            replace(log, files=tuple(file for file in log.files if file.path.is_file())) for log in logs
        ]
        print_json(listed)
        return len(listed)
    num = 0
    for log in logs:
        _show(log)
        num += 1
    return num


def follow_tasks(workspace: Workspace, tasks: TaskLogs) -> None:
    """Print the logs of tasks and what is added to them, until all of them have ended or the study runs no more."""
    follower, is_alive, look_again = _Follower(), True, 0.0
    while True:
        logs = tasks.look()
        is_open = any(log.outcome == "missing" for log in logs)
        for log in logs:
            follower.print_new(log)
        if not is_open:
            for log in logs:
                print(f"=== {heading(log)} ===")
            return
        if time.monotonic() >= look_again:
            if not is_alive:
                remark("the study does not run; what is missing runs with merlin restart")
                return
            is_alive, look_again = _is_alive(workspace), time.monotonic() + ALIVE_S
        sys.stdout.flush()
        time.sleep(POLL_S)


def follow_failures(workspace: Workspace, steps: Sequence[str]) -> None:
    """Print the logs of all failed tasks, and of those that fail, as long as the study runs."""
    members = [FailureLogs(study, steps) for study in shown_together(workspace)]
    is_alive, look_again = True, 0.0
    while True:
        for member in members:
            for log in member.new():
                _show(log)
        sys.stdout.flush()
        if not is_alive:
            return
        if time.monotonic() >= look_again:
            is_alive, look_again = _is_alive(workspace), time.monotonic() + ALIVE_S
        time.sleep(POLL_S)


def _is_alive(workspace: Workspace) -> bool:
    """Whether anybody works on the study or its extensions, or could."""
    states = (live_study(study).snapshot.state for study in shown_together(workspace))
    return any(state in ("running", "stalled", "unknown") for state in states)


def heading(log: TaskLog) -> str:
    """ "sim/P.1, sample 17: failed on node7 (w3), exit code 3"."""
    what = f"sample {log.sample_id}" if log.sample_id is not None else f"task {log.task}"
    name = f"{log.extension}/{log.instance}" if log.extension else log.instance
    where = f" on {log.host} ({short_name(log.worker)})" if log.host else ""
    return f"{name}, {what}: {log.outcome}{where}{f', {log.cause}' if log.cause else ''}"


def _show(log: TaskLog) -> None:
    print(f"=== {heading(log)} ===")
    shown = sum(_print_file(file) for file in log.files)
    if log.tail and (not shown or any(file.is_shared for file in log.files)):
        print("--- kept in the ledger ---")
        print(log.tail.rstrip("\n"))
    elif not shown:
        print("(nothing was printed)" if log.outcome != "missing" else "(it has not printed anything yet)")
    print()


def _print_file(file: LogFile) -> bool:
    """Print a file with its name above; False if there is nothing in it."""
    try:
        with file.path.open("rb") as opened:
            size = opened.seek(0, 2)
            if not size:
                return False
            part = f", the last {SHARED_LINES} lines, of all samples that this worker ran"
            print(f"--- {file.path}{part if file.is_shared else ''} ---")
            opened.seek(max(0, size - SHARED_BYTES) if file.is_shared else 0)
            text = ""
            while block := opened.read(BLOCK_BYTES):
                text = block.decode("utf-8", "replace")
                if file.is_shared:
                    text = "\n".join(text.rstrip("\n").split("\n")[-SHARED_LINES:])
                sys.stdout.write(text)
            if not text.endswith("\n"):
                print()
            return True
    except OSError:
        return False


class _Follower:
    """Remembers how far each file was printed."""

    def __init__(self) -> None:
        self._at: dict[Path, tuple[int, int]] = {}  # inode, bytes
        self._last: Path | None = None

    def print_new(self, log: TaskLog) -> None:
        """Print what was added to its files; a file that another try has replaced begins anew."""
        for file in log.files:
            with suppress(OSError), file.path.open("rb") as opened:
                found = os.fstat(opened.fileno())
                inode, at = self._at.get(file.path, (found.st_ino, _start(file, found.st_size)))
                if inode != found.st_ino or at > found.st_size:
                    at = 0
                if at < found.st_size and self._last != file.path:
                    print(f"--- {file.path} ---")
                    self._last = file.path
                opened.seek(at)
                while block := opened.read(BLOCK_BYTES):
                    sys.stdout.write(block.decode("utf-8", "replace"))
                self._at[file.path] = (found.st_ino, opened.tell())


def _start(file: LogFile, size: int) -> int:
    """Where to begin: at the present end of a log that other samples share, of which only new text matters."""
    return size if file.is_shared else 0
