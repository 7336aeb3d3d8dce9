"""Batch jobs in which workers run: their scripts, and how they are submitted."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from merlin.batch.contract import BatchScheduler, JobRequest
from merlin.batch.job_records import JOBS_DIR, JobRecord, JobRecords
from merlin.batch.jobs import SchedulerClient
from merlin.batch.script import job_script, new_job_name
from merlin.batch.walltime import walltime_seconds
from merlin.errors import UsageError
from merlin.workspace.directory import INFO_DIR

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.spec.model import Batch

PREFIX = "merlin-workers"  # of the names of these jobs
AUTOSCALE_LOG = "autoscale.jsonl"  # its decisions, a line each
AUTOSCALE_LOCK = "autoscale.lock"
LOCAL_JOBS_DIR = "merlin_jobs"  # in the current directory, for the jobs of a spec
# parts of the names of variables that stay out of scripts
_SECRET = ("PASSWORD", "PASSWD", "SECRET", "TOKEN")
_URLS = ("MERLIN_BROKER_URL", "MERLIN_BACKEND_URL")
_OF_THIS_JOB = ("MERLIN_WALLTIME_END",)  # if this is typed in an allocation


def jobs_folder(path: Path | None) -> Path:
    """Where the scripts and records of the jobs of a workspace, or of a spec, are kept."""
    if path is not None and path.is_dir():
        return path.absolute() / INFO_DIR / JOBS_DIR
    return Path.cwd() / LOCAL_JOBS_DIR


def autoscale_log(path: Path) -> Path:
    """Where the decisions of autoscale for a workspace, or a spec, are kept."""
    folder = jobs_folder(path)
    return (folder.parent if path.is_dir() else folder) / AUTOSCALE_LOG


class WorkerJobs(Struct, frozen=True, kw_only=True):
    """The worker jobs of a spec or workspace on one scheduler."""

    target: Path  # the spec or workspace, absolute
    study: str
    scheduler: BatchScheduler
    batch: Batch
    words: tuple[str, ...]  # more words for run-workers
    exported: Mapping[str, str]  # variables that the script sets
    records: JobRecords
    directory: Path  # where it was submitted: the workers' logs lie there
    # arguments of Python that start workers on so many nodes; () if only the job can tell what to start
    direct_words: Callable[[int], Sequence[str]] = lambda num_nodes: ()
    level: str = "INFO"  # of the logs

    def request(
        self, num_nodes: int, walltime_s: float | None, excluded_hosts: Sequence[str] = ()
    ) -> JobRequest:
        """A job of whole nodes. Raises UsageError for text that cannot stand in a job script.

        It asks for no warning: the workers know when their walltime ends, and a scheduler's signal would reach the
        tasks, too, and end those that do not expect it.
        """
        batch, name = self.batch, new_job_name(PREFIX, self.study)
        output = str(self.records.folder / f"{name}.out")
        try:
            return JobRequest(
                name=name,
                nodes=num_nodes,
                gpus=int(batch.gpus) if batch.gpus else None,
                walltime_s=walltime_s,
                bank=batch.bank or "",
                queue=batch.queue or "",
                reservation=batch.reservation or "",
                qos=batch.qos or "",
                is_exclusive=True,
                excluded_hosts=tuple(excluded_hosts),
                output=output,
                error=output,
                may_requeue=True,
            )
        except ValueError as error:
            raise UsageError(f"no job script can be written: {error}") from error

    def script(self, request: JobRequest) -> str:
        """The job script. Raises UsageError for text that cannot stand in one."""
        try:
            return job_script(self.scheduler, request, self._body(request), shell=self._shell)
        except ValueError as error:
            raise UsageError(f"no job script can be written: {error}") from error

    def submit(self, client: SchedulerClient, request: JobRequest, reason: str) -> JobRecord:
        """Submit a job; the same request again, after no answer, submits it once.

        Raises UsageError, WorkspaceError, SchedulerRefusedError and SchedulerUnreachableError.
        """
        record = JobRecord(
            name=request.name,
            scheduler=self.scheduler.name,
            created=time.time(),
            reason=reason,
        )
        try:
            return self.records.submit(client, record, request, self._body(request), self._shell)
        except ValueError as error:
            raise UsageError(f"no job script can be written: {error}") from error

    @property
    def _shell(self) -> str:
        return self.batch.shell.split()[0]

    def _body(self, request: JobRequest) -> str:
        asked = ["run-workers", str(self.target), "--foreground"]
        asked += ["--scheduler", self.scheduler.name, "--nodes", str(request.nodes), *self.words]
        python = [sys.executable, "-P", "-m"]
        direct = self.direct_words(request.nodes)
        command = [*python, *(direct or ["merlin.cli", "-lvl", self.level, *asked])]
        lines = [f"cd {_quoted(str(self.directory))} || exit 1"]
        lines += [f"export {name}={_quoted(value)}" for name, value in self.exported.items()]
        if sys.prefix != sys.base_prefix:  # a virtual environment
            lines += [
                f"export VIRTUAL_ENV={_quoted(sys.prefix)}",
                f'export PATH={_quoted(str(Path(sys.executable).parent))}:"$PATH"',
            ]
        if direct:
            lines.append("# what merlin " + " ".join(_quoted(word) for word in asked) + " starts here:")
        return "\n".join([*lines, "exec " + " ".join(_quoted(word) for word in command)])


def _quoted(word: str) -> str:
    """A word for the shell. Raises ValueError for one that would begin another line of the script."""
    if not word.isprintable():
        raise ValueError(f"a job script cannot hold {word[:100]!r}")
    return shlex.quote(word)


def exported_variables(config: Config | None) -> dict[str, str]:
    """The variables with which a job finds the user's configuration; nothing secret is among them."""
    left_out = (*_URLS, *_OF_THIS_JOB)
    out = {
        name: value
        for name, value in os.environ.items()
        if name == "PYTHONPATH"
        or (name.startswith("MERLIN_") and name not in left_out and not any(word in name for word in _SECRET))
    }
    if config is not None:
        if not unexported(config):
            out |= {name: os.environ[name] for name in _URLS if name in os.environ}
        out |= config.child_environment()
    return dict(sorted(out.items()))


def unexported(config: Config) -> bool:
    """Return whether a job finds the servers only if the scheduler passes on the environment of its submission."""
    return config.path is None and bool(config.broker.password or config.backend.password)


def walltime_of(batch: Batch, given: str) -> float | None:
    """The walltime that is given, else that of the batch block, in seconds; None: the scheduler's own limit."""
    text = given or batch.walltime
    if not text:
        return None
    try:
        return walltime_seconds(text)
    except ValueError as error:
        raise UsageError(f"walltime: {error}") from error
