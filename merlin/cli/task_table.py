"""Shows a study task by task, in upstream's two layouts; line by line, for there may be millions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import click

from merlin.base.text import short_name
from merlin.cli.output import is_terminal, plain, print_json, remark
from merlin.cli.status_dump import add_to_dump
from merlin.errors import ConfigError, ExecutionError
from merlin.status.tasks import RunningTasks, TaskFilters, TaskRow, task_rows
from merlin.views.live import running_tasks
from merlin.workspace.directory import Workspace

# column -> width; a longer cell pushes the rest of its line along, so that lines can be written at once
BLOCK_COLUMNS = {
    "workspace": 24, "status": 11, "return code": 12, "seconds": 9, "restarts": 8, "worker": 0,
}  # fmt: skip
TABLE_COLUMNS = {
    "step": 14, "workspace": 26, "status": 11, "return code": 12, "seconds": 9, "restarts": 8, "worker": 8,
    "queue": 10, "parameters": 0,
}  # fmt: skip
_COLOURS = {
    "FINISHED": "green", "FAILED": "red", "CANCELLED": "yellow", "INITIALIZED": "cyan", "RUNNING": "blue",
    "DRY_RUN": "magenta",
}  # fmt: skip
# of less: what fits on the screen is printed, colours are shown, and what was seen stays
_PAGER_OPTIONS = "FRX"


def dump_tasks(workspace: Workspace, filters: TaskFilters, path: Path) -> None:
    """Add the tasks that pass the filters to the file."""
    rows = task_rows(workspace, filters, _running(workspace))
    add_to_dump(path, (plain(row) | {"parameters": _parameters(row)} for row in rows), lambda: list(rows))
    print(f"status written to {path}")


def print_tasks(workspace: Workspace, filters: TaskFilters) -> None:
    """Print the tasks that pass the filters as JSON."""
    print_json(list(task_rows(workspace, filters, _running(workspace))))


def show_tasks(
    workspace: Workspace, filters: TaskFilters, *, layout: str, with_pager: bool, with_theme: bool
) -> None:
    """Show the tasks that pass the filters; on a terminal in a pager."""
    rows = task_rows(workspace, filters, _running(workspace))
    to_person = is_terminal()
    lines = _lines(workspace, rows, layout, to_person and with_theme and "NO_COLOR" not in os.environ)
    if to_person and with_pager:
        os.environ.setdefault("LESS", _PAGER_OPTIONS)
        click.echo_via_pager(line + "\n" for line in lines)
        return
    for line in lines:
        print(line)


def _running(workspace: Workspace) -> Sequence[RunningTasks]:
    """What workers run now; nothing, with a remark, if those who know cannot be asked."""
    try:
        return running_tasks(workspace)
    except (ConfigError, ExecutionError) as error:
        remark(f"what runs now is not known: {error}")
        return ()


def _parameters(row: TaskRow) -> str:
    return " ".join(f"{name}={value}" for name, value in row.parameters.items())


def _lines(workspace: Workspace, rows: Iterator[TaskRow], layout: str, with_colours: bool) -> Iterator[str]:
    first = next(rows, None)
    if first is None:
        yield "no task passes these filters"
    elif layout == "table":
        yield _padded({name: name for name in TABLE_COLUMNS}, TABLE_COLUMNS, "")
        for row in chain([first], rows):
            yield _padded(_cells(row), TABLE_COLUMNS, _colour(row, with_colours))
    else:
        yield f"study {workspace.plan.name}  {workspace.path}"
        yield from _blocks(chain([first], rows), with_colours)


def _blocks(rows: Iterator[TaskRow], with_colours: bool) -> Iterator[str]:
    """A block per step instance, with what all of its tasks have in common above them."""
    place = None
    for row in rows:
        # instances of an extension have the names of the study's
        if (row.instance, row.workspace.partition(row.instance)[0]) != place:
            place = row.instance, row.workspace.partition(row.instance)[0]
            yield ""
            yield f"step {place[1]}{row.instance}  queue {row.task_queue}  {_parameters(row)}".rstrip()
            yield "  " + _padded({name: name for name in BLOCK_COLUMNS}, BLOCK_COLUMNS, "")
        yield "  " + _padded(_cells(row), BLOCK_COLUMNS, _colour(row, with_colours))


def _cells(row: TaskRow) -> dict[str, str]:
    return {
        "step": row.step,
        "workspace": row.workspace,
        "status": row.status,
        "return code": row.return_code,
        "seconds": "" if row.started is None or row.status == "RUNNING" else f"{row.seconds:.3f}",
        "restarts": f"{row.restarts}" if row.restarts else "",
        "worker": short_name(row.worker),
        "queue": row.task_queue,
        "parameters": _parameters(row),
    }


def _colour(row: TaskRow, with_colours: bool) -> str:
    return _COLOURS.get(row.status, "") if with_colours else ""


def _padded(cells: dict[str, str], columns: dict[str, int], colour: str) -> str:
    shown = []
    for name, width in columns.items():
        right = name in ("seconds", "restarts")
        cell = cells[name].rjust(width) if right else cells[name].ljust(width)
        shown.append(click.style(cell, fg=colour) if colour and name == "status" else cell)
    return "  ".join(shown).rstrip()
