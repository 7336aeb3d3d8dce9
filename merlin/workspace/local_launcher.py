"""Which launcher starts several processes on this machine, found out by asking it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from merlin.base.document.tokens import substitute
from merlin.errors import Diagnostic
from merlin.plan.launch import asked_processes, has_launcher

if TYPE_CHECKING:
    from merlin.plan.plan import Plan
    from merlin.spec.load import Spec
    from merlin.spec.model import Step

ANSWER_S = 20.0  # for a program that ends at once
_OPEN_MPI = "Open MPI"
_OVERSUBSCRIBE = "mpirun --oversubscribe"  # Open MPI refuses more processes than cores
_AS_ROOT = "mpirun --allow-run-as-root --oversubscribe"  # and, without this, to run in a container
LAUNCHERS = ("", "mpirun", _OVERSUBSCRIBE, _AS_ROOT)  # all that may stand in a plan


@dataclass(frozen=True, slots=True)
class LocalLauncher:
    """What stands before ``-np N``; "" where nothing works, and why."""

    command: str
    trouble: str = ""
    hint: str = ""


def local_launcher(spec: Spec) -> LocalLauncher:
    """The launcher for the steps of a spec, tried out once per process; none where no step has use for one."""
    if not any(has_launcher(text) for step in spec.document.study for text in _scripts(step)):
        return LocalLauncher("")
    path = shutil.which("mpirun")
    if path is None:
        hint = "install Open MPI or MPICH; if one process is what you want, write procs: 1"
        return LocalLauncher("", "there is no mpirun on the PATH", hint)
    return _try_out(path, os.geteuid() == 0)


def launch_warnings(spec: Spec, plan: Plan) -> list[Diagnostic]:
    """Steps whose programs run as one process, although they ask for more."""
    launcher = local_launcher(spec)
    if launcher.command:
        return []
    found = []
    for index, step in enumerate(spec.document.study):
        asked = [
            asked_processes(
                substitute(text, {k: str(v) for k, v in instance.params.items()}), instance.resources
            )
            for instance in plan.instances
            if instance.step == step.name
            for text in _scripts(step)
        ]
        if (most := max(asked, default=1)) > 1:
            found.append(
                spec.finding(
                    ("study", index, "run", "cmd" if step.run.procs is None else "procs"),
                    f"step {step.name!r} asks for {most:,} processes and runs as one: {launcher.trouble}",
                    "no-launcher",
                    launcher.hint,
                    severity="warning",
                )
            )
    return found


def _scripts(step: Step) -> tuple[str, ...]:
    return step.run.cmd or "", step.run.restart or ""


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


@dataclass(frozen=True, slots=True)
class _Answer:
    is_ok: bool
    said: str  # its first line


def _answer(command: Sequence[str]) -> _Answer:
    """Run a command that should end at once; whatever it started ends with it."""
    with tempfile.TemporaryFile() as output:  # a pipe would stay open with what outlives the command
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        except OSError as error:
            return _Answer(False, error.strerror or str(error))
        try:
            code = process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            return _Answer(False, f"no answer within {ANSWER_S:.0f} s")
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if any(map(str.isalnum, line))]
    return _Answer(code == 0, lines[0].rstrip(".") if lines else f"exit code {code}")
