"""Lists and ends the batch jobs that workers live in."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches

from merlin.base.text import duration
from merlin.batch.contract import Job
from merlin.batch.jobs import SchedulerClient
from merlin.cli.output import flush, print_json, print_table, remark
from merlin.config.load import find_config, require_config
from merlin.errors import ConfigError, ExecutionError, SchedulerUnreachableError, UsageError, command_line
from merlin.execution.distributed.ended_jobs import EndedJob, end_jobs
from merlin.execution.distributed.redis_registry import RedisRegistry
from merlin.execution.distributed.registry import WorkerInfo
from merlin.views.servers import open_registry
from merlin.views.worker_jobs import JobLine, StudyJobs, clients, job_line, jobs_of_steps, our_jobs

COLUMNS = ("job", "state", "nodes", "time left", "workers", "chunks", "hosts", "reason")


def show_jobs(scheduler: str, *, as_json: bool) -> None:
    """Print the user's jobs that wait or run for workers, and how many the steps of published studies have."""
    workers, of_steps = _workers_if_any(), _jobs_of_steps()
    lines: list[JobLine] = []
    for client, jobs in _asked(scheduler, workers):
        lines += [job_line(job, client.scheduler.system, workers, time.time()) for job in jobs]
    if as_json:
        print_json({"jobs": lines, "batch_jobs": of_steps, "exit_code": 0})
        return
    if lines:
        print_table(COLUMNS, [_row(line) for line in lines], right=("nodes", "workers", "chunks"))
    else:
        more = "" if of_steps else f"; batch jobs of a study's steps: {command_line('status', 'STUDY')}"
        remark(f"no worker job waits or runs{more}")
    for study in of_steps:
        for counts in study.steps:
            print(f"{study.workspace}: {counts}")


def _asked(scheduler: str, workers: Sequence[WorkerInfo]) -> list[tuple[SchedulerClient, list[Job]]]:
    """Each installed scheduler that answers, with its jobs; a warning names those that do not answer.

    Many machines with another scheduler have Slurm's commands, too. Raises SchedulerUnreachableError if none answers.
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
    """The studies' batch jobs of steps; none where the servers cannot be asked, which was printed already."""
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
    ended: list[EndedJob] = []
    known: set[str] = set()
    problems: list[str] = []
    for client, ours in _asked(scheduler, workers):
        known |= {job.id for job in ours}
        chosen = [job for job in ours if stop_all or job.id in jobs]
        try:
            ended += end_jobs(client, chosen, workers, _registry, wait_s)
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
        print(f"job {entry.job}: {entry.done}")
    if not ended and not problems:
        print("no worker job waits or runs")
    flush()
    for problem in problems:
        remark(f"merlin: error: {problem}")
    return code


def _registry() -> RedisRegistry:
    return open_registry(require_config())
