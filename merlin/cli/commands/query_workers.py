"""`merlin query-workers`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.cli.argv import ManyCommand
from merlin.cli.options import json_option, task_server_option, worker_filters

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.execution.distributed.registry import WorkerInfo

COLUMNS = ("worker", "host", "pid", "queues", "at once", "running", "last seen")
MAX_SILENT = 20  # that are told of; anybody who can write into Redis can add some


@click.command(cls=ManyCommand)
@worker_filters
@task_server_option
@json_option
def query_workers(
    spec: Path | None, queues: tuple[str, ...], patterns: tuple[str, ...], task_server: str, as_json: bool
) -> None:
    """List your live workers, their queues and what they run. All filters must hold."""
    from merlin.cli.choose_workers import choose_workers
    from merlin.cli.output import console, flush, print_json, table
    from merlin.cli.servers import make_filter, open_registry
    from merlin.config.load import require_config

    config = require_config()
    wanted = make_filter(spec, queues, patterns)
    known = choose_workers(open_registry(config).workers(all=True), wanted, config)
    alive = [worker for worker in known if worker.is_alive]
    if as_json:
        print_json(alive)
        return
    if alive:
        console().print(table(COLUMNS, [row(worker, config) for worker in alive], right=("pid", "at once")))
    else:
        print(f"no workers {'are alive' if wanted.is_empty else 'pass these filters'}", file=sys.stderr)
    flush()
    silent = [worker for worker in known if not worker.is_alive]
    for worker in silent[:MAX_SILENT]:
        print(_silent(worker), file=sys.stderr)
    if len(silent) > MAX_SILENT:
        print(f"and {len(silent) - MAX_SILENT:,} more are silent", file=sys.stderr)


def _silent(worker: WorkerInfo) -> str:
    from merlin.base.text import duration
    from merlin.cli.choose_workers import short_name

    name, when = short_name(worker), duration(worker.age_s)
    return f"{name} (pid {worker.pid} on {worker.host}) has been silent for {when}; what it ran runs elsewhere soon"


def row(worker: WorkerInfo, config: Config) -> tuple[object, ...]:
    """A worker as a row of the table."""
    from merlin.base.text import duration
    from merlin.cli.choose_workers import short_name

    return (
        short_name(worker),
        worker.host,
        worker.pid,
        ", ".join(config.display_queue(queue) for queue in worker.queues),
        worker.concurrency,
        _running(worker),
        f"{duration(worker.age_s)} ago",
    )


def _running(worker: WorkerInfo) -> str:
    """ "simulate [0, 500), simulate [500, 800) and 3 more"."""
    shown = [f"{chunk.instance} [{chunk.lo}, {chunk.hi})" for chunk in worker.running]
    more = f" and {len(shown) - 2} more" if len(shown) > 2 else ""
    return ", ".join(shown[:2]) + more
