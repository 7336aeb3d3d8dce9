"""Job scripts: the first line, the directives of a scheduler, and what the job does. Pure."""

from __future__ import annotations

import re
import secrets

from merlin.batch.contract import BatchScheduler, JobRequest
from merlin.batch.shell_words import one_line

_MOST_NAME = 63


def job_script(scheduler: BatchScheduler, request: JobRequest, body: str, *, shell: str = "/bin/bash") -> str:
    """The text of a job script. Raises ValueError for what cannot stand in one."""
    first = one_line(shell, "the shell of a job script")
    if not first.startswith("/"):
        raise ValueError(f"the shell of a job script needs its whole path, and this is {shell!r}")
    if "\x00" in body:
        raise ValueError("a job script cannot hold a zero byte")
    header = "\n".join([f"#!{first}", *scheduler.directives(request)])
    return f"{header}\n\n{body.rstrip()}\n"


def new_job_name(*parts: str) -> str:
    """A unique name for a job, from parts with any characters: "surrogate-workers-1f2e3d4c"."""
    tail = secrets.token_hex(4)
    return f"{fit_job_name(*parts)[: _MOST_NAME - len(tail) - 1].rstrip('-.')}-{tail}"


def fit_job_name(*parts: str) -> str:
    """A name that every scheduler takes, the same for the same parts."""
    words = [re.sub(r"[^A-Za-z0-9_.]+", "-", part).strip("-.") for part in parts]
    head = "-".join(word for word in words if word)
    if not head[:1].isalpha():
        head = f"merlin-{head}".rstrip("-")
    return head[:_MOST_NAME].rstrip("-.")
