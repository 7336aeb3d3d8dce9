"""Lets bash and sh read the scripts of a study without running them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from merlin.base.commands import run_command
from merlin.base.document.tokens import TOKEN, substitute
from merlin.errors import Diagnostic
from merlin.plan.dependencies import shell_of

if TYPE_CHECKING:
    from merlin.spec.load import Spec

# A script may turn extglob on, and is right if it can be read with it or without it.
_WAYS_TO_READ = {"bash": (("--norc", "-n"), ("--norc", "-O", "extglob", "-n")), "sh": (("-n",),)}
_LIMIT_S = 2.0
_MOST = 100  # scripts, each of which takes some milliseconds


def syntax_findings(spec: Spec) -> list[Diagnostic]:
    """Warnings about scripts that their shell cannot read; what stands for a token is not known yet, and is a word."""
    document = spec.document
    variables = {name: str(value) for name, value in document.env.variables.items()}
    scripts = [
        (index, key, script)
        for index, step in enumerate(document.study)
        for key, script in (("cmd", step.run.cmd), ("restart", step.run.restart))
        if script
    ]
    found = []
    for index, key, script in scripts[:_MOST]:
        step = document.study[index]
        problem = _problem(shell_of(document, step), TOKEN.sub("x", substitute(script, variables)))
        if problem is None:
            break
        if problem:
            message = f"step {step.name!r}: the shell cannot read its {key}: {problem}"
            found.append(
                spec.finding(("study", index, "run", key), message, "shell-syntax", severity="warning")
            )
    return found


def _problem(shell: str, script: str) -> str | None:
    """What the shell says of the script; "" for other programs than bash and sh, and for what they can read.

    None if it took too long. The system's own shell is asked: a program that a spec names may do anything.
    """
    name = Path(shell.split()[0]).name if shell.split() else ""
    program = shutil.which(name, path=os.defpath) if name in _WAYS_TO_READ else None
    if program is None:
        return ""
    environment = {"PATH": os.defpath, "LC_ALL": "C"}  # no BASH_ENV, which would be run
    problem = ""
    for options in _WAYS_TO_READ[name]:
        try:
            done = run_command([program, *options], limit_s=_LIMIT_S, environment=environment, given=script)
        except OSError:
            return ""
        if done.code is None:
            return None
        said = (line for line in done.error.splitlines() if "yntax error" in line or "unexpected EOF" in line)
        found = next(said, "").removeprefix(f"{program}: ") if done.code else ""
        if not found:
            return ""
        problem = problem or found
    return problem
