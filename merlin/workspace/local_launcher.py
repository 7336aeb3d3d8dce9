"""Which launcher starts several processes on this machine, found out by asking it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from functools import cache

from msgspec import Struct

from merlin.base.commands import run_command

ANSWER_S = 20.0  # for a program that ends at once
_OPEN_MPI = "Open MPI"
_OVERSUBSCRIBE = "mpirun --oversubscribe"  # Open MPI refuses more processes than cores
_AS_ROOT = "mpirun --allow-run-as-root --oversubscribe"  # and, without this, to run in a container
LOCAL_LAUNCHERS = ("", "mpirun", _OVERSUBSCRIBE, _AS_ROOT)  # all that may stand in a plan


class LocalLauncher(Struct, frozen=True):
    """The words before ``-np N``, or "" if no launcher works, and why not."""

    command: str
    trouble: str = ""
    hint: str = ""


def local_launcher() -> LocalLauncher:
    """The launcher of this machine, tried out once per process."""
    path = shutil.which("mpirun")
    if path is None:
        hint = "install Open MPI or MPICH; if one process is what you want, write procs: 1"
        return LocalLauncher("", "there is no mpirun on the PATH", hint)
    return _try_out(path, os.geteuid() == 0)


@cache
def _try_out(path: str, is_root: bool) -> LocalLauncher:
    """The first form that starts two processes here."""
    open_mpi = _OPEN_MPI in _answer([path, "--version"]).said
    forms = ["mpirun"] if not open_mpi else [_AS_ROOT if is_root else _OVERSUBSCRIBE, "mpirun"]
    trouble = ""
    for form in forms:
        answer = _answer([path, *form.split()[1:], "-np", "2", "true"])
        if answer.is_ok:
            return LocalLauncher(form)
        trouble = trouble or answer.said
    hint = f"try it by hand: {forms[0]} -np 2 true; if one process is what you want, write procs: 1"
    return LocalLauncher("", f"{path} does not start programs here ({trouble})", hint)


class _Answer(Struct, frozen=True):
    is_ok: bool
    said: str  # its first line


def _answer(command: Sequence[str]) -> _Answer:
    """Run a command that should end at once."""
    try:
        result = run_command(command, limit_s=ANSWER_S)
    except OSError as error:
        return _Answer(False, error.strerror or str(error))
    if result.code is None:
        return _Answer(False, f"no answer within {ANSWER_S:.0f} s")
    text = result.output + result.error
    lines = [line.strip() for line in text.splitlines() if any(map(str.isalnum, line))]
    return _Answer(result.code == 0, lines[0].rstrip(".") if lines else f"exit code {result.code}")
