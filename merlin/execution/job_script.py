"""The script of a batch job that runs one chunk. Pure."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping

from merlin.batch.contract import BatchScheduler
from merlin.errors import ExecutionError
from merlin.execution.job_folder import JobFolder, StepJob
from merlin.plan.job_policy import job_request
from merlin.workspace.directory import Workspace

_PASSED_ON = (
    "PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
)  # not every scheduler gives a job the environment of its submitter


def job_script(
    workspace: Workspace,
    job: StepJob,
    folder: JobFolder,
    scheduler: BatchScheduler,
    environment: Mapping[str, str],
) -> str:
    """Directives, and the program that runs the chunk; it takes the place of the shell, and gets its signals.

    Raises ExecutionError if the scheduler has no words for the job.
    """
    instance = workspace.instance(job.chunk.instance)
    try:
        request = job_request(instance, name=job.name, output=str(folder.output))
        directives = scheduler.directives(request)
    except ValueError as error:
        raise ExecutionError(f"step {instance.step!r} cannot have batch jobs: {error}") from error
    exports = [
        f"export {name}={shlex.quote(environment[name])}" for name in _PASSED_ON if environment.get(name)
    ]
    program = [sys.executable, "-P", "-m", "merlin.execution.job_chunk"]
    program += ["--workspace", str(workspace.path), "--plan", workspace.digest, "--job", job.lease]
    lines = ["#!/bin/sh", *directives, "", *exports, f"exec {shlex.join(program)}"]
    return "\n".join(lines) + "\n"
