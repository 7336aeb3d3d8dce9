"""The files of shell tasks: their directories, scripts, finish marks, and leftovers of earlier tries."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from merlin.execution.scripts import Script
from merlin.execution.shell import machine_error
from merlin.plan.layout import FINISHED, TRY, is_set_aside

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
_MARK = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def make_directory(path: str) -> bool:
    """Create a task's directory and its missing parents. Returns True if it is new."""
    try:
        os.mkdir(path)  # noqa: PTH102 - Path objects are slow, and this runs once per task
    except FileExistsError:
        return False
    except FileNotFoundError:
        os.makedirs(path, exist_ok=True)  # noqa: PTH103
    return True


def file_size(path: str) -> int:
    """Bytes of a file; 0 if it is not there."""
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except FileNotFoundError:
        return 0


def write_script(script: Script, stem: str) -> None:
    """Write an executable `<stem>.sh` into the task's directory.

    It is written in place, which saves a rename for each task: only the process that has written a script runs it, and
    every try writes it again, so one that was cut short is never run.
    """
    path = f"{script.directory}/{stem}.sh"
    data = script.text.encode("utf-8", "surrogateescape")
    fd = os.open(path, _WRITE, 0o755)
    try:
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(fd)


def is_finished(directory: str) -> bool:
    """Return whether the mark exists. It proves nothing, because it may be a copy: check the ledger first."""
    return os.access(f"{directory}/{FINISHED}", os.F_OK)


def mark_finished(directory: str) -> None:
    """Show people, and scripts that wait for it, that the task has ended ok.

    A task that has removed or protected its own directory gets no mark. Raises OSError for errors of the machine, such
    as a full disk.
    """
    path = f"{directory}/{FINISHED}"
    try:
        os.close(os.open(path, _MARK, 0o644))
    except OSError as error:
        if error.errno == errno.ELOOP:  # a symbolic link, which the script may have copied
            unmark_finished(directory)
            with suppress(OSError):
                os.close(os.open(path, _MARK | os.O_EXCL, 0o644))
        elif machine_error(error) is not None:
            raise


def unmark_finished(directory: str) -> None:
    """Remove the mark, if the task's directory allows it."""
    with suppress(OSError):
        os.unlink(f"{directory}/{FINISHED}")  # noqa: PTH108


def set_aside(directory: str, names: Sequence[str]) -> None:
    """Move the files of an earlier try into `.try1`, `.try2` … inside the directory, and remove its finish mark.

    `names` are the files, or patterns of files, that must not count as results of a later try. Everything else stays
    where it is, because a simulation may continue from it. For a file behind a symbolic link, the link is moved.
    """
    unmark_finished(directory)
    found = {_up_to_link(directory, name) for pattern in names for name in _matches(directory, pattern)}
    if not found:
        return
    target = _new_directory(directory)
    for name in sorted(found):  # a directory before its contents
        with suppress(FileNotFoundError):  # it was inside a directory that has moved already
            os.makedirs(os.path.dirname(f"{target}/{name}"), exist_ok=True)  # noqa: PTH103, PTH120
            os.rename(f"{directory}/{name}", f"{target}/{name}")  # noqa: PTH104


def _matches(directory: str, pattern: str) -> Iterator[str]:
    """The names below the directory that match the pattern."""
    if os.path.isabs(pattern) or ".." in pattern.split("/"):  # noqa: PTH117
        return
    if not glob.has_magic(pattern):
        if os.path.lexists(f"{directory}/{pattern}"):
            yield pattern
        return
    for path in Path(directory).glob(pattern):
        name = str(path.relative_to(directory))
        if not is_set_aside(name):
            yield name


def _up_to_link(directory: str, name: str) -> str:
    """The name, or its first parent that is a link: the files behind a link may belong to another task."""
    parts = name.split("/")
    for num in range(1, len(parts)):
        parent = "/".join(parts[:num])
        if os.path.islink(f"{directory}/{parent}"):  # noqa: PTH114
            return parent
    return name


def _new_directory(directory: str) -> str:
    number = 1
    while True:
        path = f"{directory}/{TRY}{number}"
        try:
            os.mkdir(path)  # noqa: PTH102
        except FileExistsError:
            number += 1
        else:
            return path
