"""Starts the workers of a spec on this machine, and says what became of them."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec import Struct

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
from merlin.execution.distributed.launch import Launch, Queues, SpecWorker, WorkerSelection
from merlin.execution.distributed.node_workers import CORES, NODE, PASSED_ON, place
from merlin.execution.distributed.registry import WorkerInfo
from merlin.execution.distributed.start import LOGS_DIR, StartedWorker, start, wait_until_alive
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
        """The commands to execute beside the workers of this host that are `alive`."""
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

    def _command(
        self, worker: SpecWorker, is_elsewhere: bool, *, config: Config | None, extra_args: tuple[str, ...]
    ) -> list[str]:
        """The command of one worker; what only its node knows is filled in there."""
        make = partial(launch.worker_command, config, worker, extra_args=extra_args, level=self.level)
        if is_elsewhere:
            return make(num_cores=CORES, place=NODE)
        if self.rank is not None:
            return make(num_cores=usable_cores(), place=place(find_here(os.environ)))
        return make(num_cores=usable_cores())


def wanted_workers(document: Document, by_step: Queues, scheduler: str = "", **given: Any) -> WantedWorkers:
    """The workers that are wanted here; `scheduler` replaces the `batch.type` of the spec."""
    if scheduler:
        batch = document.batch.model_copy(update={"type": scheduler})
        document = document.model_copy(update={"batch": batch})
    return WantedWorkers(
        document=document, by_step=by_step, allocation=allocation_here(os.environ, client=client_here(os.environ)),
        logs=Path.cwd() / LOGS_DIR, rank=find_rank(os.environ), **given,
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
    queues = tuple(dict.fromkeys(queue for worker in entry.workers for queue in worker.queues))
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
    stay = _pass_signals_on(started) if foreground else None
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


def _pass_signals_on(started: list[StartedWorker]) -> Callable[[int], int]:
    """From now on SIGTERM and Ctrl-C become the workers' SIGTERM, which lets them finish their chunks.

    SIGUSR1, the warning of a scheduler, is theirs, too. Returns what waits for the workers and makes an exit code of
    theirs and the one it is given.
    """
    passed: list[signal.Signals] = []

    def send(number: signal.Signals) -> None:
        for entry in started:
            with suppress(ProcessLookupError):
                entry.process.send_signal(number)

    def pass_on(number: int, frame: FrameType | None) -> None:
        passed.append(PASSED_ON[signal.Signals(number)])
        send(passed[-1])

    def stay(code: int) -> int:
        for number in dict.fromkeys(passed):  # perhaps they came before all of the workers were there
            send(number)
        codes = [entry.process.wait() for entry in started]
        return code or int(any(codes))

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    return stay
