"""Submits the batch jobs that workers live in, or prints their script."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from merlin.base.text import count
from merlin.batch.job_records import JobRecord, JobRecords
from merlin.batch.jobs import SchedulerClient
from merlin.batch.registry import installed, scheduler_of
from merlin.cli import job_workers
from merlin.cli.options import parse_assignments
from merlin.cli.output import flush, print_json, remark
from merlin.cli.starting import WantedWorkers, as_for
from merlin.config.load import find_config, require_config
from merlin.config.model import Config
from merlin.config.reach import is_loopback
from merlin.errors import UsageError, command_line
from merlin.execution.distributed.launch import queues_of
from merlin.execution.distributed.start import LOGS_DIR
from merlin.execution.distributed.worker_jobs import (
    WorkerJobs,
    exported_variables,
    jobs_folder,
    unexported,
    walltime_of,
)
from merlin.spec.model import Batch, Document
from merlin.views.servers import require_reachable
from merlin.views.workers import load_workers


class WantedJobs(Struct, frozen=True, kw_only=True):
    """The worker jobs that a command line asks for."""

    path: Path  # as it was given
    document: Document
    queues: tuple[str, ...]
    jobs: WorkerJobs
    options: JobOptions

    @property
    def num_nodes(self) -> int:
        return nodes_of(self.document.batch, self.options)


class JobOptions(Struct, frozen=True, kw_only=True):
    """The options that `submit` and `autoscale` share."""

    nodes: int | None = None
    walltime: str = ""
    queue: str = ""
    bank: str = ""
    scheduler: str = ""
    steps: tuple[str, ...] = ()
    worker_args: str = ""
    assignments: tuple[str, ...] = ()
    level: str = "INFO"

    @property
    def words(self) -> tuple[str, ...]:
        """The options that run-workers has, too, as words of a command line."""
        words = ["--steps", *self.steps] if self.steps else []
        words += ["--worker-args", self.worker_args] if self.worker_args else []
        return (*words, *(("--vars", *self.assignments) if self.assignments else ()))


def nodes_of(batch: Batch, options: JobOptions) -> int:
    """Nodes of a job. Raises UsageError."""
    nodes = options.nodes or batch.nodes or 1
    if not isinstance(nodes, int):
        raise UsageError(f"batch: nodes must be a number, not {nodes!r}; or give --nodes")
    return nodes


def require_jobs(path: Path, name: str, *, other: str = "") -> None:
    """Raise UsageError where `name` is no scheduler; `other` is an option that names one, if there is any."""
    if scheduler_of(name).programs:
        return
    known = (installed() or ["slurm"])[0]
    advice = (
        f"set it to the scheduler, or give {other}{known}"
        if other
        else f"set it to the scheduler, as {known}"
    )
    raise UsageError(f"{path} says batch.type {name}, where there are no jobs; {advice}")


def wanted_jobs(path: Path, options: JobOptions, config: Config | None) -> WantedJobs:
    """What the options mean for a spec or workspace. Raises UsageError where no scheduler is chosen."""
    document, by_step = load_workers(path, parse_assignments(options.assignments))
    name = options.scheduler or document.batch.type
    require_jobs(path, name, other="--scheduler ")
    given = {key: value for key in ("queue", "bank") if (value := getattr(options, key))}
    workers = WantedWorkers(
        document=as_for(document, name), by_step=by_step, steps=options.steps, nodes=None,
        worker_args=options.worker_args, level=options.level, allocation=None, logs=Path.cwd() / LOGS_DIR,
        rank=None,
    )  # fmt: skip
    jobs = WorkerJobs(
        target=path.absolute(),
        study=document.description.name,
        scheduler=scheduler_of(name),
        batch=document.batch.model_copy(update=given),
        words=options.words,
        exported=exported_variables(config),
        records=JobRecords(jobs_folder(path)),
        directory=Path.cwd(),
        level=options.level,
        direct_words=partial(_direct_words, workers, config),
    )
    queues = queues_of(by_step, options.steps)
    return WantedJobs(path=path, document=document, queues=queues, jobs=jobs, options=options)


def _direct_words(workers: WantedWorkers, config: Config | None, num_nodes: int) -> Sequence[str]:
    """The words after `python -m` for a job of `num_nodes` nodes; () if only the job knows what to start."""
    launch = workers.in_job(config, num_nodes) if config else None
    if config is None or launch is None:
        return ()
    servers = dict.fromkeys([config.broker.address, config.backend.address])
    return [job_workers.__name__, *job_workers.words(servers, launch)]


def require_keyed_config() -> Config:
    """The configuration, with its key made now, so that the jobs find it. Raises ConfigError."""
    config = require_config()
    _ = config.key
    return config


def print_script(path: Path, options: JobOptions, as_json: bool) -> int:
    """Print the job script of a spec or workspace, for which no server needs to be there."""
    config = find_config()
    wanted = wanted_jobs(path, options, config)
    if config is None:
        start = f"{command_line('server', 'start')}, or {command_line('config', 'create')}"
        remark(f"merlin: warning: no broker is configured, and these workers would not find one: {start}")
    request = wanted.jobs.request(wanted.num_nodes, walltime_of(wanted.jobs.batch, wanted.options.walltime))
    script = wanted.jobs.script(request)
    if as_json:
        print_json({"name": request.name, "script": script, "exit_code": 0})
    else:
        print(script, end="")
    return 0


def submit_jobs(path: Path, options: JobOptions, num_jobs: int, as_json: bool) -> int:
    """Submit jobs and say which; a job that is refused ends it with an error."""
    config = require_keyed_config()
    wanted = wanted_jobs(path, options, config)
    warn_of_servers(config)
    client = SchedulerClient(wanted.jobs.scheduler)
    records: list[JobRecord] = []
    for _ in range(num_jobs):
        request = wanted.jobs.request(
            wanted.num_nodes, walltime_of(wanted.jobs.batch, wanted.options.walltime)
        )
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
    for warning in require_reachable(config):
        remark(f"merlin: warning: {warning}")
    local = [e.safe_url for e in (config.broker, config.backend) if e.host and is_loopback(e.host)]
    if local:
        remark(
            f"merlin: warning: {local[0]} is on this machine alone; workers on other nodes will not reach it "
            f"(a private server for them: {command_line('server', 'config', '--host', '0.0.0.0')})"
        )
    if unexported(config):
        remark(
            "merlin: warning: MERLIN_BROKER_URL holds a password, so it is not written into the job script; jobs "
            "find it only if the scheduler passes on your environment. An app.yaml is safer: merlin config create"
        )
