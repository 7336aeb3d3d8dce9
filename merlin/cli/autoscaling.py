"""Runs `merlin workers autoscale`: one round after another, each decision printed and kept."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from merlin.base.document.scalars import Problem, to_seconds
from merlin.base.locks import LockTaken, locked
from merlin.base.text import count
from merlin.batch.autoscale import Caps, Finish, Move, Submit, Wait
from merlin.batch.cores import usable_cores
from merlin.batch.jobs import SchedulerClient
from merlin.batch.walltime import as_clock
from merlin.cli.output import print_line, remark
from merlin.cli.submitting import (
    JobOptions,
    WantedJobs,
    nodes_of,
    require_keyed_config,
    wanted_jobs,
    warn_of_servers,
)
from merlin.cli.worker_jobs import stop_jobs
from merlin.errors import UsageError, WorkspaceError, command_line
from merlin.execution.distributed.autoscaler import POLLS_PER_MINUTE, Autoscaler
from merlin.execution.distributed.worker_jobs import AUTOSCALE_LOCK, autoscale_log, walltime_of
from merlin.execution.refusal_notices import RefusalNotices
from merlin.execution.walltime import MARGIN_S
from merlin.spec.model import Autoscale, Batch
from merlin.views.demand import QueueDemand

LOOK_S = 2.0  # between two rounds; the scheduler is asked less often
HURRIED_S = 0.2  # the same while a probe runs, near the end of the work, and after it
MAX_PAUSE_S = 20.0
SHARE = 0.05  # the share of its time that it may spend on looking
HURRIED_SHARE = 0.25  # the same while a probe runs, near the end of the work, and after it
SAY_AGAIN_S = 600.0


class GivenCaps(Struct, frozen=True, kw_only=True):
    """The limits that the command line gives; None or "" stands for the limit in the spec."""

    min_nodes: int | None = None
    max_nodes: int | None = None
    max_jobs: int | None = None
    backlog: str | None = None
    idle: str | None = None


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
    wanted = wanted_jobs(path, options, config)
    caps = caps_of(wanted.jobs.batch, options, given)
    warn_of_servers(config)
    most_s = math.inf if caps.walltime_s is None else caps.walltime_s - MARGIN_S
    demand = QueueDemand(config, wanted.queues, most_s)
    looked = demand.look()
    if not looked.num_open:
        remark(f"no open study of yours uses these queues; publish one first: {command_line('run', path)}")
    _warn_of_long_steps(looked.needs_s, caps)
    client = SchedulerClient(wanted.jobs.scheduler, polls_per_minute=POLLS_PER_MINUTE)
    scaler = Autoscaler(wanted.jobs, client, caps, demand, clock=time.time, assumed_slots=usable_cores())
    folder = wanted.jobs.records.folder
    folder.mkdir(parents=True, exist_ok=True)
    diary = Diary(autoscale_log(path), say, as_json=as_json)
    try:
        with locked(folder / AUTOSCALE_LOCK):
            return _rounds(scaler, demand, diary, RefusalNotices(path, wanted.document, remark))
    except LockTaken as holder:
        raise WorkspaceError(f"another merlin workers autoscale has the jobs in {folder}: {holder}") from None
    except KeyboardInterrupt:
        return _interrupted(scaler, wanted, stop_at_end)


def _rounds(scaler: Autoscaler, demand: QueueDemand, diary: Diary, notices: RefusalNotices) -> int:
    while True:
        began = time.monotonic()
        moves = scaler.round()
        notices.look(scaler.refusal)
        for move in moves:
            diary.note(move)
            if isinstance(move, Finish):
                notices.look(move.reason if move.is_failure and not scaler.refusal else "")
                notices.wait()
                return int(move.is_failure)
        wait = demand.wait if scaler.is_hurried else time.sleep
        wait(pause_s(time.monotonic() - began, is_hurried=scaler.is_hurried))


def pause_s(round_s: float, *, is_hurried: bool) -> float:
    """Seconds until the next round: more after a long round, which read a long ledger or met a slow server."""
    least_s, share = (HURRIED_S, HURRIED_SHARE) if is_hurried else (LOOK_S, SHARE)
    return min(MAX_PAUSE_S, max(least_s, round_s / share))


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


def caps_of(batch: Batch, options: JobOptions, given: GivenCaps) -> Caps:
    """The limits of the command line, else of batch.autoscale, else of the batch block. Raises UsageError."""
    block = batch.autoscale or Autoscale()
    nodes = options.nodes or block.nodes or nodes_of(batch, options)
    most = given.max_nodes or block.max or nodes
    least = block.min if given.min_nodes is None else given.min_nodes
    if least > most:
        raise UsageError(f"at least {least} nodes and at most {most} exclude each other; see --min and --max")
    backlog_s = block.backlog if given.backlog is None else _seconds(given.backlog, "--backlog")
    return Caps(
        max_nodes=most,
        min_nodes=least,
        max_jobs=given.max_jobs or block.jobs,
        nodes_per_job=min(nodes, most),
        walltime_s=walltime_of(batch, options.walltime or block.walltime or ""),
        backlog_s=None if backlog_s is None else max(1.0, backlog_s),
        idle_s=block.idle if given.idle is None else _seconds(given.idle, "--idle"),
    )


def _seconds(text: str, option: str) -> float:
    try:
        return to_seconds(text)
    except Problem as problem:
        raise UsageError(f"{option}: {problem}") from None


def _warn_of_long_steps(needs_s: Mapping[str, float], caps: Caps) -> None:
    """Say which steps no job would have the time for."""
    if caps.walltime_s is None:
        return
    for step, need_s in needs_s.items():
        if need_s > caps.walltime_s - MARGIN_S:
            remark(
                f"merlin: warning: step {step} needs {as_clock(need_s)}, and the jobs have "
                f"{as_clock(caps.walltime_s)}: its tasks will not start in them; give more --walltime"
            )


class Diary:
    """Prints decisions, and keeps them as JSON lines; an unchanged reason to wait is rarely repeated."""

    def __init__(self, path: Path, say: Callable[[str], None], *, as_json: bool) -> None:
        self._path, self._say, self._as_json = path, say, as_json
        self._last, self._said_at = "", 0.0

    def note(self, move: Move) -> None:
        now = time.time()
        key = re.sub(r"\d[\d.,]*( min| h| s)?", "#", move.reason)
        if isinstance(move, Wait):
            if key == self._last and now - self._said_at < SAY_AGAIN_S:
                return
            self._last, self._said_at = key, now
        else:
            self._last = ""
        facts = {"time": now, "move": type(move).__name__.lower(), **_facts(move)}
        line = json.dumps(facts)
        with self._path.open("a", encoding="utf-8") as file:  # whose last line is read to explain a wait
            file.write(line + "\n")
        self._say(line if self._as_json else f"{datetime.fromtimestamp(now):%H:%M:%S} {_text(move)}")


def _facts(move: Move) -> dict[str, Any]:
    return {name: getattr(move, name) for name in move.__struct_fields__}


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
