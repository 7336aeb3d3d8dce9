"""Runs `merlin workers autoscale`: prints each decision, and what is left when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path

from merlin.base.text import count
from merlin.batch.autoscale import Caps, Finish, Move, Submit, Wait
from merlin.batch.cores import usable_cores
from merlin.batch.jobs import SchedulerClient
from merlin.batch.walltime import as_clock
from merlin.cli.output import print_line, remark
from merlin.cli.submitting import jobs_as_asked, require_keyed_config, warn_of_servers
from merlin.cli.worker_jobs import stop_jobs
from merlin.errors import command_line
from merlin.execution.distributed.autoscaler import POLLS_PER_MINUTE, Autoscaler
from merlin.execution.distributed.autoscaler_caps import GivenCaps, caps_of, longest_task_s, too_long_steps
from merlin.execution.distributed.autoscaler_loop import Decision, Diary, scale_to_end
from merlin.execution.distributed.wanted_jobs import JobOptions, WantedJobs
from merlin.execution.distributed.worker_jobs import autoscale_log
from merlin.execution.refusal_notices import RefusalNotices
from merlin.views.demand import QueueDemand


def run_in_jobs(workspace: Path, level: str, *, as_json: bool) -> int:
    """Bring jobs for a published study as its spec says, and report how it ended; returns the exit code."""
    code = scale(
        workspace, JobOptions(level=level), GivenCaps(), stop_at_end=False, as_json=False, say=remark
    )
    from merlin.cli.monitoring import follow_all  # late: the first job must not wait for it

    return code or follow_all(workspace, {}, (), None, as_json)


def scale(
    path: Path,
    options: JobOptions,
    given: GivenCaps,
    *,
    stop_at_end: bool,
    as_json: bool,
    say: Callable[[str], None] = print_line,
) -> int:
    """Submit and end jobs until the work on the queues is done and the jobs have gone; returns the exit code.

    Each decision is printed as soon as it is made.
    """
    config = require_keyed_config()
    wanted = jobs_as_asked(path, options, config)
    caps = caps_of(wanted.jobs.batch, options, given)
    warn_of_servers(config)
    demand = QueueDemand(config, wanted.queues, longest_task_s(caps))
    looked = demand.look()
    if not looked.num_open:
        remark(f"no open study of yours uses these queues; publish one first: {command_line('run', path)}")
    _warn_of_long_steps(looked.needs_s, caps)
    client = SchedulerClient(wanted.jobs.scheduler, polls_per_minute=POLLS_PER_MINUTE)
    scaler = Autoscaler(wanted.jobs, client, caps, demand, clock=time.time, assumed_slots=usable_cores())
    diary = Diary(autoscale_log(path), partial(tell, say=say, as_json=as_json))
    notices = RefusalNotices(path, wanted.document, remark)
    try:
        end = scale_to_end(scaler, wanted.jobs.records.folder, diary, notices, demand.wait)
    except KeyboardInterrupt:
        return _interrupted(scaler, wanted, stop_at_end)
    return int(end.is_failure)


def _interrupted(scaler: Autoscaler, wanted: WantedJobs, stop_at_end: bool) -> int:
    jobs = scaler.live_jobs
    if jobs and stop_at_end:
        stop_jobs(tuple(jobs), False, 30.0, wanted.jobs.scheduler.name, False)
    elif jobs:
        end = command_line("workers", "stop", *jobs)
        remark(f"{count(len(jobs), 'job goes', 'jobs go')} on: {', '.join(jobs)}; to end them: {end}")
    if not stop_at_end:
        remark(f"to bring more: {command_line('workers', 'autoscale', wanted.path)}")
    return 130


def _warn_of_long_steps(needs_s: Mapping[str, float], caps: Caps) -> None:
    """Say which steps no job would have the time for."""
    for step, need_s in too_long_steps(needs_s, caps).items():
        remark(
            f"merlin: warning: step {step} needs {as_clock(need_s)}, and the jobs have "
            f"{as_clock(caps.walltime_s or 0.0)}: its tasks will not start in them; give more --walltime"
        )


def tell(decision: Decision, *, say: Callable[[str], None], as_json: bool) -> None:
    """Say a decision, as JSON or in words with its time of day."""
    at = f"{datetime.fromtimestamp(decision.time):%H:%M:%S}"
    say(decision.to_line() if as_json else f"{at} {_text(decision.move)}")


def _text(move: Move) -> str:
    match move:
        case Submit():
            walltime = "" if move.walltime_s is None else f" for {as_clock(move.walltime_s)}"
            return f"submitted job {move.job}: {count(move.num_nodes, 'node')}{walltime}; {move.reason}"
        case Wait():
            return f"waiting: {move.reason}"
        case Finish():
            return f"{'gave up' if move.is_failure else 'finished'}: {move.reason}"
        case _:
            return f"ended job {move.job}: {move.reason}"
