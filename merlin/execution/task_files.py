"""The files of shell tasks: their directories, scripts and finish marks."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from merlin.execution.scripts import Script
from merlin.study.layout import FINISHED

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


def make_directory(path: str) -> bool:
    """Create a task's directory, with its parents if they are missing; true if it is new."""
    try:
        os.mkdir(path)  # noqa: PTH102 - Path objects are slow, and this runs once per task
    except FileExistsError:
        return False
    except FileNotFoundError:
        os.makedirs(path, exist_ok=True)  # noqa: PTH103
    return True


def write_script(script: Script, stem: str) -> None:
    """Write an executable `<stem>.sh` into the task's directory."""
    path = f"{script.directory}/{stem}.sh"
    data = script.text.encode("utf-8", "surrogateescape")
    fd = os.open(path, _WRITE, 0o755)
    try:
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(fd)


def is_finished(directory: str) -> bool:
    return os.access(f"{directory}/{FINISHED}", os.F_OK)


def mark_finished(directory: str) -> None:
    os.close(os.open(f"{directory}/{FINISHED}", _WRITE, 0o644))


def unmark_finished(directory: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(f"{directory}/{FINISHED}")  # noqa: PTH108
