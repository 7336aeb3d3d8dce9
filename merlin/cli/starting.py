"""Starts the workers of a spec on this machine, and says what became of them."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from merlin.base.text import count
from merlin.cli.output import print_json, print_table, remark
from merlin.config.load import find_config, require_config
from merlin.config.model import Config
from merlin.execution.distributed import launch
from merlin.execution.distributed.launch import Launch, Queues, SpecWorker, WorkerSelection
from merlin.execution.distributed.registry import WorkerInfo
from merlin.execution.distributed.start import LOGS_DIR, StartedWorker, start, wait_until_alive
from merlin.spec.model import Document
from merlin.views.servers import open_registry, require_reachable
from merlin.views.workers import short_name, workers_here

Line = tuple[SpecWorker, Launch]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedWorkers:
    """The workers that a spec and a command line ask for."""

    document: Document
    by_step: Queues
    steps: tuple[str, ...]
    worker_args: str
    level: str

    def lines(self, config: Config | None, alive: list[WorkerInfo]) -> tuple[WorkerSelection, list[Line]]:
        """The lines to execute beside the workers of this host that are `alive`."""
        host = socket.gethostname()
        environment = {**os.environ, **{k: str(v) for k, v in self.document.env.variables.items()}}
        selection = launch.select_workers(
            self.document,
            self.by_step,
            host=host,
            steps=self.steps,
            served={launch.plain_queue(config, q): short_name(w) for w in alive for q in w.queues},
            environment=environment,
        )
        taken = {short_name(worker).removesuffix(f".{host}") for worker in alive}
        allocated = launch.num_allocated_nodes(os.environ)
        lines = []
        for worker in selection.start:
            named = launch.with_free_name(worker, taken)
            taken.add(named.name)
            command = launch.worker_command(
                config,
                named,
                extra_args=launch.split_args(self.worker_args, environment),
                level=self.level,
                num_cores=len(os.sched_getaffinity(0)) if worker.batch.type == "local" else None,
            )
            line = launch.launch_line(named, command, which=shutil.which, num_allocated=allocated)
            lines.append((named, line))
        return selection, lines


def print_lines(wanted: WantedWorkers, *, as_json: bool) -> None:
    """Print the command lines that would start the workers."""
    selection, lines = wanted.lines(find_config(), [])
    if as_json:
        workers = [_facts(*line) for line in lines]
        print_json({"workers": workers, "skipped": selection.skipped, "exit_code": 0})
        return
    _say_skipped(selection, lines)
    for _, line in lines:
        print(shlex.join(line.argv))


def _facts(worker: SpecWorker, line: Launch) -> dict[str, Any]:
    return {"name": worker.name, "queues": worker.queues, "command": line.argv}


def _say_skipped(selection: WorkerSelection, lines: list[Line]) -> None:
    for skipped in selection.skipped:
        remark(f"worker {skipped.name} is not started: {skipped.reason}")
    for _, line in lines:
        if line.note:
            remark(line.note)


def start_workers(wanted: WantedWorkers, timeout_s: float, foreground: bool, as_json: bool) -> int:
    """Start them and wait until they have reported; returns the exit code, in the foreground once they have ended."""
    config = require_config()
    for warning in require_reachable(config):
        remark(f"merlin: warning: {warning}")
    registry = open_registry(config)
    selection, lines = wanted.lines(config, workers_here(registry))
    if not as_json:
        _say_skipped(selection, lines)
    # it leads a worker to our configuration and key wherever it starts
    environment = {**os.environ, **config.child_environment()}
    logs = Path.cwd() / LOGS_DIR
    known = registry.workers()
    started: list[StartedWorker] = []
    stay = _pass_signals_on(started) if foreground else None
    for line in lines:
        started.append(start(*line, logs=logs, environment=environment, known=known))
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
    return _facts(entry.worker, entry.launch) | facts


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
            remark(f"worker {entry.worker.name} did not start: {entry.died}")
        elif not entry.is_settled:
            remark(
                f"worker {entry.worker.name} (pid {entry.process.pid}) has not reported within {timeout_s:g} s; "
                f"it goes on trying. Its log: {entry.log}"
            )


def _pass_signals_on(started: list[StartedWorker]) -> Callable[[int], int]:
    """From now on SIGTERM and Ctrl-C become the workers' SIGTERM, which lets them finish their chunks.

    Returns what waits for the workers and makes an exit code of theirs and the one it is given.
    """
    is_ending = False

    def terminate() -> None:
        for entry in started:
            with suppress(ProcessLookupError):
                entry.process.send_signal(signal.SIGTERM)

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal is_ending
        is_ending = True
        terminate()

    def stay(code: int) -> int:
        if is_ending:  # perhaps before all of them were there
            terminate()
        codes = [entry.process.wait() for entry in started]
        return code or int(any(codes))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    return stay
