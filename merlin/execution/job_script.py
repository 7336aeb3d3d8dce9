"""The script of a batch job that runs one chunk. Pure."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping

from merlin.batch.registry import scheduler_of
from merlin.batch.script import job_script
from merlin.errors import ExecutionError
from merlin.execution.job_folder import JobFolder, StepJob
from merlin.plan.job_policy import job_request
from merlin.workspace.directory import Workspace

# not every scheduler gives a job the environment of its submitter
_PASSED_ON = ("PATH", "PYTHONPATH", "VIRTUAL_ENV")


def chunk_script(
    workspace: Workspace, job: StepJob, folder: JobFolder, environment: Mapping[str, str]
) -> str:
    """Directives, and the program that runs the chunk; it takes the place of the shell, and gets its signals.

    Raises ExecutionError if the scheduler has no words for the job.
    """
    instance = workspace.instance(job.chunk.instance)
    exports = [
        f"export {name}={shlex.quote(environment[name])}" for name in _PASSED_ON if environment.get(name)
    ]
    program = [sys.executable, "-P", "-m", "merlin.execution.job_chunk"]
    program += ["--workspace", str(workspace.path), "--plan", workspace.digest, "--job", job.lease]
    body = "\n".join([*exports, f"exec {shlex.join(program)}"])
    try:
        request = job_request(instance, name=job.name, output=str(folder.output))
        return job_script(scheduler_of(job.scheduler), request, body, shell="/bin/sh")
    except ValueError as error:
        raise ExecutionError(f"step {instance.step!r} cannot have batch jobs: {error}") from error
