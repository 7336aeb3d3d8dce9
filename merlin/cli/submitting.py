"""Submits the batch jobs that workers live in, or prints their script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from merlin.base.text import count
from merlin.batch.job_records import JobRecord
from merlin.batch.jobs import SchedulerClient
from merlin.cli import job_workers
from merlin.cli.options import parse_assignments
from merlin.cli.output import flush, print_json, remark
from merlin.config.load import find_config, require_config
from merlin.config.model import Config
from merlin.errors import command_line
from merlin.execution.distributed.start import Launch
from merlin.execution.distributed.wanted_jobs import JobOptions, WantedJobs, wanted_jobs
from merlin.views.worker_jobs import warnings_for_jobs
from merlin.views.workers import load_workers


def jobs_as_asked(path: Path, options: JobOptions, config: Config | None) -> WantedJobs:
    """The worker jobs of a spec or workspace. Raises UsageError where no scheduler is chosen."""
    document, by_step = load_workers(path, parse_assignments(options.assignments))
    return wanted_jobs(path, document, by_step, options, config, _program)


def _program(servers: Sequence[str], launch: Launch) -> Sequence[str]:
    return [job_workers.__name__, *job_workers.words(servers, launch)]


def require_keyed_config() -> Config:
    """The configuration, with its key made now, so that the jobs find it. Raises ConfigError."""
    config = require_config()
    _ = config.key
    return config


def print_script(path: Path, options: JobOptions, as_json: bool) -> int:
    """Print the job script of a spec or workspace, for which no server needs to be there."""
    config = find_config()
    wanted = jobs_as_asked(path, options, config)
    if config is None:
        start = f"{command_line('server', 'start')}, or {command_line('config', 'create')}"
        remark(f"merlin: warning: no broker is configured, and these workers would not find one: {start}")
    request = wanted.request()
    script = wanted.jobs.script(request)
    if as_json:
        print_json({"name": request.name, "script": script, "exit_code": 0})
    else:
        print(script, end="")
    return 0


def submit_jobs(path: Path, options: JobOptions, num_jobs: int, as_json: bool) -> int:
    """Submit jobs and say which; a job that is refused ends it with an error."""
    config = require_keyed_config()
    wanted = jobs_as_asked(path, options, config)
    warn_of_servers(config)
    client = SchedulerClient(wanted.jobs.scheduler)
    records: list[JobRecord] = []
    for _ in range(num_jobs):
        request = wanted.request()
        records.append(wanted.jobs.submit(client, request, "merlin workers submit"))
        if not as_json:
            print(f"submitted job {records[-1].id} ({count(request.nodes, 'node')}): {records[-1].script}")
            flush()
    if as_json:
        print_json({"jobs": records, "exit_code": 0})
    else:
        print(
            f"to watch:\n  {command_line('workers', 'list')}\n  {command_line('workers', 'explain', wanted.path)}"
        )
    return 0


def warn_of_servers(config: Config) -> None:
    """Raise ExecutionError if a server does not answer here; warn of what jobs elsewhere will not find."""
    for warning in warnings_for_jobs(config):
        remark(f"merlin: warning: {warning}")
