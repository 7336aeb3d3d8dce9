"""`merlin queue-info`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.base.files import write_text
from merlin.cli.argv import ManyCommand, ManyOption
from merlin.cli.options import json_option, parse_assignments, task_server_option, vars_option
from merlin.errors import UsageError

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.execution.distributed.queues import QueueInfo


@click.command(cls=ManyCommand)
@click.option("--specific-queues", cls=ManyOption, metavar="QUEUE …", help="Only these.")
@click.option(
    "--spec", type=click.Path(exists=True, path_type=Path), metavar="SPEC", help="Only those of its steps."
)
@click.option("--steps", cls=ManyOption, metavar="STEP …", help="With --spec: only those of these steps.")
@vars_option
@click.option(
    "--dump",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Add them to a .csv or .json file.",
)
@task_server_option
@json_option
def queue_info(
    specific_queues: tuple[str, ...],
    spec: Path | None,
    steps: tuple[str, ...],
    assignments: tuple[str, ...],
    dump: Path | None,
    task_server: str,
    as_json: bool,
) -> None:
    """Show the length of queues and how many workers serve them; by default of all queues with a worker or study."""
    from merlin.cli.output import check_dump, console, print_json, table
    from merlin.cli.servers import require_reachable
    from merlin.config.load import require_config

    if spec is None and (assignments or steps):
        raise UsageError("--steps and --vars need a spec: --spec SPEC")
    check_dump(dump)
    config = require_config()
    require_reachable(config)
    names = _wanted(config, spec, steps, specific_queues, parse_assignments(assignments))
    found = _look(config, names)
    if dump is not None:
        append_dump(dump, found)
        print(f"queues written to {dump}", file=sys.stderr)
    if as_json:
        print_json(found)
    elif found:
        rows = [(name, info.depth, info.consumers) for name, info in found.items()]
        console().print(table(("queue", "messages", "workers"), rows, right=("messages", "workers")))
    else:
        print("no queues: no worker is alive, and no study is open", file=sys.stderr)


def _look(config: Config, names: list[str]) -> dict[str, QueueInfo]:
    """By the name that people see. Our own register counts the workers: Redis as a broker does not know them."""
    from merlin.cli.servers import open_registry
    from merlin.execution.distributed.queues import QueueInfo, queue_depths

    workers = open_registry(config).workers()
    found: dict[str, QueueInfo] = {}
    for name, info in queue_depths(config, names).items():
        full = config.queue_name(name)
        num_workers = sum(full in worker.queues for worker in workers)
        found[config.display_queue(full)] = QueueInfo(depth=info.depth, consumers=num_workers)
    return found


def _wanted(
    config: Config,
    spec: Path | None,
    steps: tuple[str, ...],
    specific: tuple[str, ...],
    variables: dict[str, str],
) -> list[str]:
    """Names of queues as in specs."""
    from merlin.cli.servers import load_workers, open_queues
    from merlin.execution.distributed.launch import plain_queue, queues_of

    given = [plain_queue(config, queue) for queue in specific]
    if spec is None:
        return list(dict.fromkeys(given or open_queues(config)))
    of_spec = queues_of(load_workers(spec, variables)[1], steps)
    for queue in given:
        if queue not in of_spec:
            print(f"no such queue in {spec}: {queue}; it has: {', '.join(of_spec)}", file=sys.stderr)
    return [queue for queue in of_spec if not given or queue in given]


def append_dump(path: Path, found: Mapping[str, QueueInfo], *, moment: str = "") -> None:
    """Add the queues to a file as upstream does: a row of a CSV file, or an entry of a JSON object."""
    import csv
    import json
    from datetime import datetime

    moment = moment or datetime.now().strftime("%Y-%m-%d %H:%M:%S")
    if path.suffix == ".json":
        before: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        before[moment] = {n: {"tasks": i.depth, "consumers": i.consumers} for n, i in found.items()}
        write_text(path, json.dumps(before, indent=2) + "\n")
        return
    row: dict[str, object] = {"time": moment}
    for name, info in found.items():
        row |= {f"{name}:tasks": info.depth, f"{name}:consumers": info.consumers}
    rows: list[dict[str, object]] = []
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            rows = [dict(old) for old in csv.DictReader(file)]
    import io

    text = io.StringIO()
    columns = list(dict.fromkeys(key for old in [*rows, row] for key in old))
    writer = csv.DictWriter(text, fieldnames=columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows([*rows, row])
    write_text(path, text.getvalue())
