"""What a page can do to a study: the same commands that a user types, run as processes of their own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from merlin.base.files import end_of
from merlin.errors import ExecutionError, UsageError, command_line
from merlin.workspace.directory import INFO_DIR, members, open_workspace

LOG = logging.getLogger(__name__)

MERLIN = (sys.executable, "-P", "-m", "merlin.cli")
WAIT_S = 15.0  # the wait for a command to end; a command that takes longer goes on by itself
LOGS_DIR = "actions"  # below merlin_info
_TAIL_BYTES = 4000


def _option(flag: str, steps: Sequence[str]) -> list[str]:
    return [word for step in steps for word in (flag, step)]


def _cancel(path: str, steps: Sequence[str]) -> list[str]:
    return ["cancel", path, *_option("--step", steps)]


def _rerun(path: str, steps: Sequence[str]) -> list[str]:
    return ["restart", path, "--failed", *_option("--step", steps)]


def _stop_workers(path: str, steps: Sequence[str]) -> list[str]:
    if steps:
        raise UsageError("workers are stopped for all steps of the study; name none")
    return ["stop-workers", "--spec", path]


def _submit(path: str, steps: Sequence[str]) -> list[str]:
    return ["workers", "submit", path, *_option("--steps", steps)]


ACTIONS: Mapping[str, Callable[[str, Sequence[str]], list[str]]] = {
    "cancel": _cancel,
    "rerun-failed": _rerun,
    "stop-workers": _stop_workers,
    "submit": _submit,
}


class Done(Struct, frozen=True, kw_only=True):
    """What an action has done."""

    done: str  # for people
    command: str
    exit_code: int | None  # None: it still runs
    output: str  # the end of the command's output
    log: str  # the file with all of its output


def words_of(name: str, workspace: Path, steps: Collection[str]) -> list[str]:
    """The words of the command that an action stands for. Raises UsageError for an action or a step that is unknown."""
    if name not in ACTIONS:
        raise UsageError(f"there is no action {name!r}; there are: {', '.join(ACTIONS)}")
    known = {
        instance.step for study in members(open_workspace(workspace)) for instance in study.plan.instances
    }
    for step in steps:
        if step not in known:
            raise UsageError(f"the study has no step {step!r}; it has: {', '.join(sorted(known))}")
    return ACTIONS[name](str(workspace), sorted(steps))


def act(name: str, workspace: Path, steps: Collection[str], wait_s: float = WAIT_S) -> Done:
    """Run the command of an action, and wait for its end for a while.

    Raises UsageError, and ExecutionError with what the command printed if it failed.
    """
    words = words_of(name, workspace, steps)
    shown = command_line(*words)
    log = _log_file(workspace, name)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*MERLIN, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # it outlives the dashboard
        )
    LOG.info("%s (process %d, output in %s)", shown, process.pid, log)
    code: int | None = None
    try:
        code = process.wait(wait_s)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, daemon=True).start()  # reaps the process at its end
    said = end_of(log, _TAIL_BYTES).strip()
    if code:
        raise ExecutionError(f"{shown} ended with exit code {code}: {said or 'it printed nothing'}")
    how = "is done" if code == 0 else f"has begun and goes on by itself; its output is in {log}"
    return Done(done=f"{shown} {how}", command=shown, exit_code=code, output=said, log=str(log))


def _log_file(workspace: Path, name: str) -> Path:
    folder = workspace / INFO_DIR / LOGS_DIR
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ExecutionError(f"{folder} cannot be made: {error.strerror}; nothing was done") from error
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return folder / f"{stamp}-{name}-{os.getpid()}.log"
