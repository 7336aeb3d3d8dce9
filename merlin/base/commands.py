"""Runs short external commands to their end, within a time limit; then kills what is left of their sessions."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from msgspec import Struct

_MOST_BYTES = 64 * 1024 * 1024  # of its output; more is not read


class CommandResult(Struct, frozen=True):
    """What a command printed, and how it ended."""

    code: int | None  # None: it was killed after the time limit; below 0: by this signal
    output: str
    error: str


def run_command(
    command: Sequence[str],
    *,
    limit_s: float,
    environment: Mapping[str, str] | None = None,
    given: str = "",
    directory: str | None = None,
) -> CommandResult:
    """Run a command, which reads `given` from its input. Raises OSError if it cannot be started."""
    # files, because a process that outlives the command would keep a pipe open
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as error,
    ):
        stdin.write(given.encode("utf-8", "surrogateescape"))
        stdin.seek(0)
        process = subprocess.Popen(
            command,
            stdin=stdin if given else subprocess.DEVNULL,
            stdout=output,
            stderr=error,
            env=None if environment is None else dict(environment),
            cwd=directory,
            start_new_session=True,
        )
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(limit_s)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return CommandResult(code, _text(output), _text(error))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_MOST_BYTES).decode("utf-8", "replace")
