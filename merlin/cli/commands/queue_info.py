"""`merlin queue-info` shows how full the queues are and who serves them."""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.base.files import write_text
from merlin.cli.argv import ManyCommand, ManyOption
from merlin.cli.options import (
    EXISTING,
    FILE,
    json_option,
    parse_assignments,
    task_server_option,
    vars_option,
)
from merlin.cli.output import check_dump, csv_text, local_time, print_json, print_table, remark
from merlin.errors import UsageError

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.execution.distributed.queues import QueueInfo


@click.command(cls=ManyCommand)
@click.option("--specific-queues", cls=ManyOption, metavar="QUEUE …", help="Only these.")
@click.option("--spec", type=EXISTING, metavar="SPEC", help="Only those of its steps.")
@click.option("--steps", cls=ManyOption, metavar="STEP …", help="With --spec: only those of these steps.")
@vars_option
@click.option("--dump", type=FILE, metavar="FILE", help="Add them to a .csv or .json file.")
@task_server_option
@json_option
def queue_info(
    specific_queues: tuple[str, ...],
    spec: Path | None,
    steps: tuple[str, ...],
    assignments: tuple[str, ...],
    dump: Path | None,
    as_json: bool,
) -> None:
    """Show the length of queues and how many workers serve them; by default of all queues with a worker or study."""
    from merlin.config.load import require_config
    from merlin.views.queues import look_at_queues, short_of_time
    from merlin.views.servers import require_reachable

    if spec is None and (assignments or steps):
        raise UsageError("--steps and --vars need a spec: --spec SPEC")
    check_dump(dump)
    config = require_config()
    require_reachable(config)
    names = _wanted(config, spec, steps, specific_queues, parse_assignments(assignments))
    found = look_at_queues(config, names)
    if dump is not None:
        append_dump(dump, found)
        remark(f"queues written to {dump}")
    if as_json:
        print_json(found)
    elif found:
        rows = [(name, info.depth, info.consumers) for name, info in found.items()]
        print_table(("queue", "messages", "workers"), rows, right=("messages", "workers"))
        for reason in short_of_time(config, names):
            remark(reason)
    else:
        remark("no queues: no worker is alive, and no study is open")


def _wanted(
    config: Config,
    spec: Path | None,
    steps: tuple[str, ...],
    specific: tuple[str, ...],
    variables: dict[str, str],
) -> list[str]:
    """Names of queues as in specs."""
    from merlin.execution.distributed.launch import plain_queue, queues_of
    from merlin.views.queues import open_queues
    from merlin.views.workers import load_workers

    given = list(dict.fromkeys(plain_queue(config, queue) for queue in specific))
    if spec is None:
        return given or open_queues(config)
    of_spec = queues_of(load_workers(spec, variables)[1], steps)
    for queue in given:
        if queue not in of_spec:
            remark(f"no such queue in {spec}: {queue}; it has: {', '.join(of_spec)}")
    return [queue for queue in of_spec if not given or queue in given]


def append_dump(path: Path, found: Mapping[str, QueueInfo], *, moment: str = "") -> None:
    """Add the queues to a file as upstream does: a row of a CSV file, or an entry of a JSON object.

    Raises UsageError if the file holds something else, which stays as it is.
    """
    from merlin.cli.status_dump import NO_DUMP, add_to_dump

    if path.suffix == ".json":
        document = {n: {"tasks": i.depth, "consumers": i.consumers} for n, i in found.items()}
        add_to_dump(path, (), document, moment=moment)
        return
    rows: list[dict[str, object]] = []
    if path.is_file():
        try:
            with path.open(encoding="utf-8", newline="") as file:
                rows = [dict(old) for old in csv.DictReader(file)]
        except (ValueError, csv.Error) as error:
            raise UsageError(NO_DUMP.format(path)) from error
    row: dict[str, object] = {"time": moment or local_time(time.time())}
    for name, info in found.items():
        row |= {f"{name}:tasks": info.depth, f"{name}:consumers": info.consumers}
    write_text(path, csv_text([*rows, row]))
