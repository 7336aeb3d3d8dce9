"""`merlin stop-workers`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.base.text import count
from merlin.cli.argv import ManyCommand
from merlin.cli.options import json_option, worker_filters
from merlin.cli.output import flush, print_json, remark

if TYPE_CHECKING:
    from merlin.execution.distributed.redis_registry import RedisRegistry
    from merlin.execution.distributed.registry import WorkerInfo

POLL_S = 0.2


@click.command(cls=ManyCommand)
@worker_filters
@click.option(
    "--now", is_flag=True, help="Interrupt running chunks and give them back, instead of finishing them."
)
@click.option(
    "--wait", "wait_s", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS",
    help="Wait until they have ended; exit with 1 if one has not.",
)  # fmt: skip
@json_option
def stop_workers(
    spec: Path | None,
    queues: tuple[str, ...],
    patterns: tuple[str, ...],
    now: bool,
    wait_s: float,
    as_json: bool,
) -> None:
    """Stop your workers, or those that pass all filters, once they have finished what they run.

    What they have not begun stays in the queues, for other workers.
    """
    from merlin.config.load import require_config
    from merlin.views.servers import open_registry
    from merlin.views.workers import choose_workers, make_filter, short_name

    config = require_config()
    wanted = make_filter(spec, queues, patterns)
    registry = open_registry(config)
    found = choose_workers(registry.workers(), wanted, config)
    if found:
        registry.send([w.name for w in found], "stop_now" if now else "stop")
    left = _wait(registry, found, wait_s) if wait_s else []
    code = 1 if left else 0
    if as_json:
        print_json({"stopped": [w.name for w in found if w not in left], "alive": left, "exit_code": code})
    elif not found:
        remark(f"no workers {'are alive' if wanted.is_empty else 'pass these filters'}; nothing to stop")
    else:
        how = "now" if now else "after what runs there"
        print(f"{count(len(found), 'worker')} told to stop {how}: {', '.join(map(short_name, found))}")
    flush()
    for worker in () if as_json else left:
        remark(f"{short_name(worker)} (pid {worker.pid} on {worker.host}) is still alive")
    sys.exit(code)


def _wait(registry: RedisRegistry, stopped: list[WorkerInfo], wait_s: float) -> list[WorkerInfo]:
    """Those of `stopped` that are alive after `wait_s` seconds."""
    from merlin.execution.distributed.control import has_died

    deadline = time.monotonic() + wait_s
    names = {worker.name for worker in stopped}
    while left := [w for w in registry.workers() if w.name in names and not has_died(w)]:
        if time.monotonic() >= deadline:
            return left
        time.sleep(POLL_S)
    return []
