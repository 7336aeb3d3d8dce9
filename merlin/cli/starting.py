"""Starts the workers of a spec on this machine, and says what became of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import chain
from typing import Any

from merlin.base.text import count, short_name
from merlin.cli.output import flush, print_json, print_table, remark
from merlin.config.load import find_config, require_config
from merlin.config.model import Config
from merlin.execution.distributed.launch import WorkerSelection
from merlin.execution.distributed.start import Launch, StartedWorker
from merlin.execution.distributed.wanted_workers import WantedWorkers, start_workers
from merlin.views.servers import open_registry, require_reachable
from merlin.views.workers import workers_here


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


def start_and_report(
    wanted: WantedWorkers, timeout_s: float, foreground: bool, as_json: bool, *, leave_when_done: bool
) -> int:
    """Start them and wait until they have reported; returns the exit code, in the foreground once they have ended."""
    if wanted.are_started_by_others:
        remark("the first process that was launched on this node starts its workers")
        return 0
    config = require_config()
    for warning in require_reachable(config):
        remark(f"merlin: warning: {warning}")
    registry = open_registry(config)
    selection, found = wanted.launches(config, [w for w in workers_here(registry) if w.job == wanted.job])
    if not as_json:
        _say_skipped(selection, found)
    started = start_workers(
        found,
        registry.workers,
        logs=wanted.logs,
        environment=wanted.environment(config, leave_when_done=leave_when_done),
        job=wanted.job,
        timeout_s=timeout_s,
        foreground=foreground,
    )
    code = started.exit_code
    if as_json:
        workers = [_started_facts(entry) for entry in started.entries]
        print_json({"workers": workers, "skipped": selection.skipped, "exit_code": code})
    else:
        _show(started.entries, config, timeout_s)
    flush()  # in the foreground it stays until the workers end
    return code if started.stay is None else started.stay(code)


def _started_facts(entry: StartedWorker) -> dict[str, Any]:
    facts = {"log": entry.log, "pid": entry.process.pid, "alive": entry.alive, "died": entry.died}
    return _facts(entry.launch) | facts


def _show(started: Sequence[StartedWorker], config: Config, timeout_s: float) -> None:
    rows = []
    for entry in started:
        for w in entry.alive:
            queues = ", ".join(config.display_queue(q) for q in w.queues)
            rows.append((short_name(w.name), w.host, w.pid, w.concurrency, queues, entry.log))
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
