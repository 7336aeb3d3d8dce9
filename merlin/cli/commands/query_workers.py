"""`merlin query-workers`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.base.text import duration
from merlin.cli.argv import ManyCommand
from merlin.cli.options import json_option, worker_filters
from merlin.cli.output import flush, print_json, print_table, remark

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.execution.distributed.registry import WorkerInfo

COLUMNS = ("worker", "host", "pid", "queues", "at once", "running", "last seen")
MAX_SILENT = 20  # that are reported; anybody who can write into Redis can add some


@click.command(cls=ManyCommand)
@worker_filters
@json_option
def query_workers(
    spec: Path | None, queues: tuple[str, ...], patterns: tuple[str, ...], as_json: bool
) -> None:
    """List your live workers, their queues and what they run. All filters must hold."""
    from merlin.config.load import require_config
    from merlin.views.servers import open_registry
    from merlin.views.workers import choose_workers, make_filter, short_name

    config = require_config()
    wanted = make_filter(spec, queues, patterns)
    known = choose_workers(open_registry(config).workers(all=True), wanted, config)
    alive = [worker for worker in known if worker.is_alive]
    if as_json:
        print_json(alive)
        return
    if alive:
        print_table(COLUMNS, [(short_name(w), *_facts(w, config)) for w in alive], right=("pid", "at once"))
    else:
        remark(f"no workers {'are alive' if wanted.is_empty else 'pass these filters'}")
    flush()
    silent = [worker for worker in known if not worker.is_alive]
    for worker in silent[:MAX_SILENT]:
        remark(
            f"{short_name(worker)} (pid {worker.pid} on {worker.host}) has been silent for {duration(worker.age_s)}; "
            "what it ran runs elsewhere soon"
        )
    if len(silent) > MAX_SILENT:
        remark(f"and {len(silent) - MAX_SILENT:,} more are silent")


def _facts(worker: WorkerInfo, config: Config) -> tuple[object, ...]:
    """A worker in the table, without its name; it runs "simulate [0, 500), simulate [500, 800) and 3 more"."""
    shown = [f"{chunk.instance} [{chunk.lo}, {chunk.hi})" for chunk in worker.running]
    more = f" and {len(shown) - 2} more" if len(shown) > 2 else ""
    return (
        worker.host,
        worker.pid,
        ", ".join(config.display_queue(queue) for queue in worker.queues),
        worker.concurrency,
        ", ".join(shown[:2]) + more,
        f"{duration(worker.age_s)} ago",
    )
