"""Lists and stops the live workers that a command line means."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from merlin.base.text import count, duration, short_name
from merlin.cli.output import flush, print_json, print_table, remark
from merlin.config.load import require_config
from merlin.config.model import Config
from merlin.execution.distributed.control import has_died
from merlin.execution.distributed.redis_registry import RedisRegistry
from merlin.execution.distributed.registry import WorkerInfo
from merlin.views.servers import open_registry
from merlin.views.workers import choose_workers, make_filter

COLUMNS = ("worker", "host", "pid", "queues", "at once", "running", "last seen")
OF_ALLOCATIONS = ("node", "job", "time left")
MAX_SILENT = 20  # that are reported; anybody who can write into Redis can add some
POLL_S = 0.2


def list_workers(spec: Path | None, queues: Sequence[str], patterns: Sequence[str], as_json: bool) -> None:
    """Print the live workers that pass the filters, and which have fallen silent."""
    config = require_config()
    wanted = make_filter(spec, queues, patterns)
    known = choose_workers(open_registry(config).workers(all=True), wanted, config)
    alive = [worker for worker in known if worker.is_alive]
    if as_json:
        print_json(alive)
        return
    if alive:
        _show(alive, config)
    else:
        remark(f"no workers {'are alive' if wanted.is_empty else 'pass these filters'}")
    flush()
    silent = [worker for worker in known if not worker.is_alive]
    for worker in silent[:MAX_SILENT]:
        remark(
            f"{_named(worker)} has been silent for {duration(worker.age_s)}; other workers get what it had not ended"
        )
    if len(silent) > MAX_SILENT:
        remark(f"and {len(silent) - MAX_SILENT:,} more are silent")


def _show(alive: Sequence[WorkerInfo], config: Config) -> None:
    """Print a table; it tells of allocations if some of the workers live in one."""
    more = any(worker.job for worker in alive)
    columns = (*COLUMNS, *(OF_ALLOCATIONS if more else ()))
    rows = [(*_row(worker, config), *(_allocation(worker) if more else ())) for worker in alive]
    print_table(columns, rows, right=("pid", "at once"))


def _allocation(worker: WorkerInfo) -> tuple[object, ...]:
    left_s = None if worker.ends is None else worker.ends - (worker.last_beat + worker.age_s)
    return worker.node, worker.job, "" if left_s is None else duration(max(0.0, left_s))


def _named(worker: WorkerInfo) -> str:
    return f"{short_name(worker.name)} (pid {worker.pid} on {worker.host})"


def _row(worker: WorkerInfo, config: Config) -> tuple[object, ...]:
    """A worker as a row of the table; it runs "simulate [0, 500), simulate [500, 800) and 3 more"."""
    shown = [f"{chunk.instance} [{chunk.lo}, {chunk.hi})" for chunk in worker.running]
    more = f" and {len(shown) - 2} more" if len(shown) > 2 else ""
    queues = ", ".join(config.display_queue(queue) for queue in worker.queues)
    place = (short_name(worker.name), worker.host, worker.pid, queues, worker.concurrency)
    return (*place, ", ".join(shown[:2]) + more, f"{duration(worker.age_s)} ago")


def stop(
    spec: Path | None,
    queues: Sequence[str],
    patterns: Sequence[str],
    now: bool,
    wait_s: float,
    as_json: bool,
) -> int:
    """Stop the live workers that pass the filters; returns 1 if one is alive after `wait_s`, else 0."""
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
        return code
    if found:
        how = "now" if now else "after what runs there"
        names = ", ".join(short_name(worker.name) for worker in found)
        print(f"{count(len(found), 'worker')} told to stop {how}: {names}")
    else:
        remark(f"no workers {'are alive' if wanted.is_empty else 'pass these filters'}; nothing to stop")
    flush()
    for worker in left:
        remark(f"{_named(worker)} is still alive")
    return code


def _wait(registry: RedisRegistry, stopped: Sequence[WorkerInfo], wait_s: float) -> list[WorkerInfo]:
    """Those of `stopped` that are alive after `wait_s` seconds."""
    deadline = time.monotonic() + wait_s
    names = {worker.name for worker in stopped}
    while left := [w for w in registry.workers() if w.name in names and not has_died(w)]:
        if time.monotonic() >= deadline:
            return left
        time.sleep(POLL_S)
    return []
