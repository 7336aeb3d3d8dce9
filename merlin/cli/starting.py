"""Starts the workers of a spec on this machine, and says what became of them."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.text import count
from merlin.batch.contract import Allocation
from merlin.batch.cores import usable_cores
from merlin.batch.environment import without
from merlin.batch.here import allocation_here, client_here, end_for_children, find_here
from merlin.batch.ranks import LaunchedRank, find_rank
from merlin.batch.registry import scheduler_of
from merlin.cli.output import print_json, print_table, remark
from merlin.config.load import find_config, require_config
from merlin.config.model import Config
from merlin.execution.distributed import launch
from merlin.execution.distributed.idle_watch import VARIABLE as LEAVE_WHEN_DONE
from merlin.execution.distributed.launch import Queues, SpecWorker, WorkerSelection
from merlin.execution.distributed.node_workers import CORES, NODE, place
from merlin.execution.distributed.registry import WorkerInfo
from merlin.execution.distributed.start import (
    LOGS_DIR,
    Launch,
    StartedWorker,
    pass_signals_on,
    start,
    wait_until_alive,
)
from merlin.spec.model import Document
from merlin.views.servers import open_registry, require_reachable
from merlin.views.workers import short_name, workers_here


class WantedWorkers(Struct, frozen=True, kw_only=True):
    """The workers that a spec and a command line ask for, in the allocation that this process lives in, if any."""

    document: Document
    by_step: Queues
    steps: tuple[str, ...]
    nodes: int | None
    worker_args: str
    level: str
    allocation: Allocation | None
    logs: Path
    rank: LaunchedRank | None  # of this process, if a launcher has started several

    def launches(
        self, config: Config | None, alive: list[WorkerInfo]
    ) -> tuple[WorkerSelection, list[Launch]]:
        """The commands to execute, where the workers that are `alive` run on this host already."""
        host = socket.gethostname()
        environment = {**os.environ, **{k: str(v) for k, v in self.document.env.variables.items()}}
        selection = launch.select_workers(
            self.document,
            self.by_step,
            host=host,
            hosts=self.allocation.hosts if self.allocation and not self.rank else (),
            steps=self.steps,
            nodes=self.nodes,
            served={launch.plain_queue(config, q): short_name(w) for w in alive for q in w.queues},
            environment=environment,
        )
        taken = {short_name(worker).removesuffix(f".{host}") for worker in alive}
        named = []
        for worker in selection.start:
            named.append(launch.with_free_name(worker, taken))
            taken.add(named[-1].name)
        command = partial(
            self._command, config=config, extra_args=launch.split_args(self.worker_args, environment)
        )
        logs, allocation = self.logs, self.allocation
        return selection, launch.launches(
            named,
            command,
            which=shutil.which,
            logs=logs,
            allocation=allocation,
            is_launched=self.rank is not None,
        )

    def in_job(self, config: Config, num_nodes: int) -> Launch | None:
        """The one command that starts all of them on each node of a job that is still to come, of `batch.type`.

        None if only the job can tell: of hosts that `machines` names, variables in arguments, what else it starts.
        """
        scheduler, wanted = self.document.batch.type, self.document.merlin.resources.workers.values()
        has_variables = any("$" in args for args in (self.worker_args, *(w.args for w in wanted)))
        if has_variables or any(worker.machines for worker in wanted):
            return None
        allocation = Allocation(scheduler=scheduler, job="", num_nodes=num_nodes)
        selection, found = replace(self, nodes=num_nodes, allocation=allocation).launches(config, [])
        of_others = any(w.batch.type != scheduler or w.batch.launch_pre for w in selection.start)
        if of_others or len(found) != 1 or found[0].is_local or found[0].num_nodes != num_nodes:
            return None
        return found[0]

    def _command(
        self, worker: SpecWorker, is_elsewhere: bool, *, config: Config | None, extra_args: tuple[str, ...]
    ) -> list[str]:
        """The command of one worker; values that only its node knows are filled in on that node."""
        make = partial(launch.worker_command, config, worker, extra_args=extra_args, level=self.level)
        if is_elsewhere:
            return make(num_cores=CORES, place=NODE)
        if self.rank is not None:
            return make(num_cores=usable_cores(), place=place(find_here(os.environ)))
        return make(num_cores=usable_cores())


def as_for(document: Document, scheduler: str) -> Document:
    """The spec with this `batch.type`; unchanged if `scheduler` is empty."""
    if not scheduler:
        return document
    return document.model_copy(update={"batch": document.batch.model_copy(update={"type": scheduler})})


def wanted_workers(document: Document, by_step: Queues, scheduler: str = "", **given: Any) -> WantedWorkers:
    """The workers that are wanted here; `scheduler` replaces the `batch.type` of the spec."""
    return WantedWorkers(
        document=as_for(document, scheduler), by_step=by_step,
        allocation=allocation_here(os.environ, client=client_here(os.environ)), logs=Path.cwd() / LOGS_DIR,
        rank=find_rank(os.environ), **given,
    )  # fmt: skip


def print_lines(wanted: WantedWorkers, *, as_json: bool) -> None:
    """Print the command lines that would start the workers."""
    selection, found = wanted.launches(find_config(), [])
    if as_json:
        workers = [_facts(entry) for entry in found]
        print_json({"workers": workers, "skipped": selection.skipped, "exit_code": 0})
        return
    _say_skipped(selection, found)
    for entry in found:
        print(shlex.join(entry.argv))


def _facts(entry: Launch) -> dict[str, Any]:
    queues = tuple(dict.fromkeys(chain.from_iterable(entry.queues.values())))
    return {"name": entry.name, "queues": queues, "command": entry.argv}


def _say_skipped(selection: WorkerSelection, found: list[Launch]) -> None:
    for skipped in selection.skipped:
        remark(f"worker {skipped.name} is not started: {skipped.reason}")
    for entry in found:
        if entry.note:
            remark(entry.note)


def start_workers(
    wanted: WantedWorkers, timeout_s: float, foreground: bool, as_json: bool, *, leave_when_done: bool = False
) -> int:
    """Start them and wait until they have reported; returns the exit code, in the foreground once they have ended."""
    if wanted.rank is not None and wanted.rank.local_rank:
        remark("the first process that was launched on this node starts its workers")
        return 0
    config = require_config()
    for warning in require_reachable(config):
        remark(f"merlin: warning: {warning}")
    registry = open_registry(config)
    job = wanted.allocation.job if wanted.allocation else ""
    selection, found = wanted.launches(config, [w for w in workers_here(registry) if w.job == job])
    if not as_json:
        _say_skipped(selection, found)
    # it leads a worker to our configuration and key wherever it starts
    environment = {**os.environ, **config.child_environment(), **end_for_children(wanted.allocation)}
    if wanted.rank is not None and wanted.allocation is not None:
        environment = without(environment, scheduler_of(wanted.allocation.scheduler).launch_variables)
    if leave_when_done:
        environment[LEAVE_WHEN_DONE] = "1"
    known = registry.workers()
    started: list[StartedWorker] = []
    stay = pass_signals_on(started) if foreground else None
    for entry in found:
        started.append(start(entry, logs=wanted.logs, environment=environment, known=known, job=job))
    in_time = wait_until_alive(started, registry.workers, timeout_s=timeout_s)
    code = 0 if in_time and not any(entry.died for entry in started) else 1
    if as_json:
        workers = [_started_facts(entry) for entry in started]
        print_json({"workers": workers, "skipped": selection.skipped, "exit_code": code})
    else:
        _show(started, config, timeout_s)
    return code if stay is None else stay(code)


def _started_facts(entry: StartedWorker) -> dict[str, Any]:
    facts = {"log": entry.log, "pid": entry.process.pid, "alive": entry.alive, "died": entry.died}
    return _facts(entry.launch) | facts


def _show(started: list[StartedWorker], config: Config, timeout_s: float) -> None:
    rows = []
    for entry in started:
        for w in entry.alive:
            queues = ", ".join(config.display_queue(q) for q in w.queues)
            rows.append((short_name(w), w.host, w.pid, w.concurrency, queues, entry.log))
    if rows:
        print_table(("worker", "host", "pid", "at once", "queues", "log"), rows, right=("pid", "at once"))
        print(f"\n{count(len(rows), 'worker')} started")
    if not started:
        print("nothing to start")
    for entry in started:
        if entry.died:
            remark(f"worker {entry.launch.name} did not start: {entry.died}")
        elif not entry.is_settled:
            remark(
                f"worker {entry.launch.name} (pid {entry.process.pid}) has not reported within {timeout_s:g} s; "
                f"it goes on trying. Its log: {entry.log}"
            )
