"""Submits, lists and ends the batch jobs that workers live in."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from merlin.base.records import to_plain
from merlin.base.text import count, duration
from merlin.batch.contract import Job, JobState
from merlin.batch.job_records import JobRecord, JobRecords
from merlin.batch.jobs import SchedulerClient
from merlin.batch.registry import installed, scheduler_of
from merlin.cli import job_workers
from merlin.cli.options import parse_assignments
from merlin.cli.output import flush, print_json, print_table, remark
from merlin.cli.starting import WantedWorkers, as_for
from merlin.config.load import find_config, require_config
from merlin.config.model import Config
from merlin.config.reach import is_loopback
from merlin.errors import (
    ConfigError,
    ExecutionError,
    SchedulerUnreachableError,
    UsageError,
    command_line,
)
from merlin.execution.distributed.launch import queues_of
from merlin.execution.distributed.registry import WorkerInfo
from merlin.execution.distributed.start import LOGS_DIR
from merlin.execution.distributed.worker_jobs import (
    PURPOSE,
    WorkerJobs,
    exported_variables,
    jobs_folder,
    unexported,
    walltime_of,
)
from merlin.spec.model import Document
from merlin.views.explain import explain
from merlin.views.job_obstacles import Asked
from merlin.views.servers import open_registry, require_reachable
from merlin.views.worker_jobs import JobLine, StudyJobs, clients, job_line, jobs_of_steps, our_jobs
from merlin.views.workers import load_workers

COLUMNS = ("job", "state", "nodes", "time left", "workers", "chunks", "hosts", "reason")
POLL_S = 1.0


class WantedJobs(Struct, frozen=True, kw_only=True):
    """The worker jobs that a command line asks for."""

    path: Path  # as it was given
    document: Document
    queues: tuple[str, ...]
    jobs: WorkerJobs
    options: JobOptions

    @property
    def num_nodes(self) -> int:
        nodes = self.options.nodes or self.document.batch.nodes or 1
        if not isinstance(nodes, int):
            raise UsageError(f"batch: nodes must be a number, not {nodes!r}; or give --nodes")
        return nodes


class JobOptions(Struct, frozen=True, kw_only=True):
    """The options that `submit` and `autoscale` share."""

    nodes: int | None
    walltime: str
    queue: str
    bank: str
    scheduler: str
    steps: tuple[str, ...]
    worker_args: str
    assignments: tuple[str, ...]
    level: str

    @property
    def words(self) -> tuple[str, ...]:
        """Those that run-workers has, too."""
        words = ["--steps", *self.steps] if self.steps else []
        words += ["--worker-args", self.worker_args] if self.worker_args else []
        return (*words, *(("--vars", *self.assignments) if self.assignments else ()))


def wanted_jobs(path: Path, options: JobOptions, config: Config | None) -> WantedJobs:
    """What the options mean for a spec or workspace. Raises UsageError where no scheduler is chosen."""
    document, by_step = load_workers(path, parse_assignments(options.assignments))
    name = options.scheduler or document.batch.type
    if not scheduler_of(name).programs:
        raise UsageError(
            f"{path} says batch.type {name}, where there are no jobs; "
            f"set it to the scheduler, or give --scheduler {(installed() or ['slurm'])[0]}"
        )
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
    """Python's words for a job of so many nodes, if what it starts is known before."""
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


# ------------------------------------------------------------------ list and stop


def show_jobs(scheduler: str, *, as_json: bool) -> None:
    """Print the jobs of this user that wait or run for workers, and how many such jobs steps have of their own."""
    workers, of_steps = _workers_if_any(), _jobs_of_steps()
    lines: list[JobLine] = []
    for client, jobs in _asked(scheduler, workers):
        lines += [job_line(job, client.scheduler.name, workers, time.time()) for job in jobs]
    if as_json:
        print_json({"jobs": lines, "batch_jobs": of_steps, "exit_code": 0})
        return
    if lines:
        print_table(COLUMNS, [_row(line) for line in lines], right=("nodes", "workers", "chunks"))
    else:
        remark("no worker job waits or runs")
    for study in of_steps:
        for counts in study.steps:
            print(f"{study.workspace}: {counts}")


def _asked(scheduler: str, workers: Sequence[WorkerInfo]) -> list[tuple[SchedulerClient, list[Job]]]:
    """Each scheduler that is installed, with its jobs; one that does not answer is only told of if another does.

    Commands of Slurm are installed on many machines that have another scheduler. Raises SchedulerUnreachableError.
    """
    found: list[tuple[SchedulerClient, list[Job]]] = []
    troubles: list[SchedulerUnreachableError] = []
    for client in clients(scheduler):
        try:
            found.append((client, our_jobs(client, workers)))
        except SchedulerUnreachableError as error:
            troubles.append(error)
    if troubles and not found:
        raise troubles[0]
    for trouble in troubles:
        remark(f"merlin: warning: {trouble}")
    return found


def _row(line: JobLine) -> tuple[object, ...]:
    hosts = ", ".join(line.hosts[:4]) + (f" and {len(line.hosts) - 4} more" if len(line.hosts) > 4 else "")
    facts = (line.id, line.state, line.num_nodes, duration(line.left_s))
    return (*facts, len(line.workers), line.num_chunks, hosts, line.reason)


def _workers_if_any() -> list[WorkerInfo]:
    """The live workers; none, with a remark, where the servers cannot be asked."""
    try:
        config = find_config()
        return [] if config is None else open_registry(config).workers()
    except (ConfigError, ExecutionError) as error:
        remark(f"which workers live there is not known: {error}")
        return []


def _jobs_of_steps() -> list[StudyJobs]:
    """None where the servers cannot be asked; that was told already."""
    with suppress(ConfigError, ExecutionError):
        if (config := find_config()) is not None:
            return jobs_of_steps(open_registry(config).studies())
    return []


def stop_jobs(jobs: tuple[str, ...], stop_all: bool, wait_s: float, scheduler: str, as_json: bool) -> int:
    """End jobs, and say what was done; returns 1 if one is unknown or could not be ended."""
    if bool(jobs) == stop_all:
        raise UsageError(
            "give the jobs to end, or --all for every worker job; merlin workers list shows them"
        )
    workers = _workers_if_any()
    ended: list[dict[str, Any]] = []
    known: set[str] = set()
    problems: list[str] = []
    for client, ours in _asked(scheduler, workers):
        known |= {job.id for job in ours}
        chosen = [job for job in ours if stop_all or job.id in jobs]
        try:
            ended += end_jobs(client, chosen, workers, wait_s)
        except ExecutionError as error:
            problems.append(str(error))
    for job in jobs:
        if job not in known:
            close = get_close_matches(job, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else "; merlin workers list shows them"
            problems.append(f"{job} is no worker job of yours that waits or runs{hint}")
    code = int(bool(problems))
    if as_json:
        print_json({"ended": ended, "problems": problems, "exit_code": code})
        return code
    for entry in ended:
        print(f"job {entry['job']}: {entry['done']}")
    if not ended and not problems:
        print("no worker job waits or runs")
    flush()
    for problem in problems:
        remark(f"merlin: error: {problem}")
    return code


def end_jobs(
    client: SchedulerClient, jobs: Sequence[Job], workers: Sequence[WorkerInfo], wait_s: float
) -> list[dict[str, Any]]:
    """Tell the workers of the jobs to stop, wait until they have gone, and cancel what is left of the jobs."""
    scheduler, ids = client.scheduler.name, {job.id for job in jobs if job.state is JobState.RUNNING}
    inside = [w for w in workers if w.job in ids and w.scheduler == scheduler]
    left: set[str] = set()
    if inside:
        registry = open_registry(require_config())
        registry.send([worker.name for worker in inside], "stop")
        left = _wait_for(
            lambda: {w.job for w in registry.workers() if w.name in {i.name for i in inside}}, wait_s
        )
    client.cancel([job.id for job in jobs])
    told = {worker.job for worker in inside}
    return [{"job": job.id, "done": _done(job, told, left)} for job in jobs]


def _done(job: Job, told: Collection[str], left: Collection[str]) -> str:
    if job.state is JobState.PENDING:
        return "cancelled before it began"
    if job.id in left:
        return "cancelled; its workers give back what they run"
    return (
        "its workers have finished, and it is cancelled"
        if job.id in told
        else "cancelled; no worker was alive in it"
    )


def _wait_for(alive: Callable[[], set[str]], wait_s: float) -> set[str]:
    """The jobs in which workers are alive after `wait_s` seconds."""
    deadline = time.monotonic() + wait_s
    while (left := alive()) and time.monotonic() < deadline:
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))
    return left


# ------------------------------------------------------------------ explain


def show_explanation(
    spec_or_workspace: Path, variables: dict[str, str], scheduler: str, as_json: bool
) -> int:
    """Print what runs, and each condition that keeps more from running."""
    document, by_step = load_workers(spec_or_workspace, variables)
    records = [r for r in JobRecords(jobs_folder(spec_or_workspace)).all() if r.purpose == PURPOSE]
    name = scheduler or (records[-1].scheduler if records else document.batch.type)
    is_asked = bool(scheduler_of(name).programs) and name in installed()
    asked = Asked(
        path=spec_or_workspace,
        queues=queues_of(by_step),
        clients=[SchedulerClient(scheduler_of(name))] if is_asked else [],
        records=records,
    )
    found = explain(asked)
    if as_json:
        print_json({**to_plain(found), "exit_code": found.exit_code})
        return found.exit_code
    if found.num_chunks:
        print(f"{count(found.num_chunks, 'chunk')} run on {count(found.num_workers, 'worker')}")
    else:
        print(f"nothing runs; {count(found.num_workers, 'worker')} alive")
    for obstacle in found.obstacles:
        print(f"- {obstacle.what}")
        if obstacle.remedy:
            print(f"    {obstacle.remedy}")
    return found.exit_code
