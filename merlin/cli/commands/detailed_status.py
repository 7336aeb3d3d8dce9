"""`merlin detailed-status`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from merlin.base.text import count
from merlin.cli.argv import ManyCommand, ManyOption
from merlin.cli.options import json_option, number_option, study_options
from merlin.cli.output import check_dump, dump_file, is_terminal, plain, print_json

if TYPE_CHECKING:
    from merlin.status.tasks import TaskRow

F = TypeVar("F", bound=Callable[..., Any])

# column -> width; a longer cell pushes the rest of its line along, so that lines can be written at once
COLUMNS = {
    "step": 14, "workspace": 26, "status": 11, "return code": 12, "seconds": 9, "restarts": 8, "worker": 8,
    "queue": 10, "parameters": 0,
}  # fmt: skip
_COLOURS = {
    "FINISHED": "green", "FAILED": "red", "CANCELLED": "yellow", "INITIALIZED": "cyan", "DRY_RUN": "magenta",
}  # fmt: skip


def _filter(flag: str, text: str) -> Callable[[F], F]:
    return click.option(flag, cls=ManyOption, leaves_last=True, metavar="WORD …", help=text)


@click.command(cls=ManyCommand)
@study_options
@_filter("--task-status", "FINISHED, FAILED, CANCELLED, INITIALIZED, RUNNING, DRY_RUN or UNKNOWN.")
@_filter("--return-code", "SUCCESS, SOFT_FAIL, HARD_FAIL, STOP_WORKERS, RESTART, RETRY or DRY_SUCCESS.")
@_filter("--steps", "Only tasks of these steps.")
@_filter("--task-queues", "Only tasks of these queues.")
@_filter("--workers", "Only tasks that these workers ran, named as in the spec or as the status shows them.")
@number_option("--max-tasks", "N", "Show at most N tasks.")
@click.option(
    "--layout",
    type=click.Choice(["default", "table"]),
    default="default",
    show_default=True,
    help="A block per step instance, or one table.",
)
@click.option("--disable-pager", is_flag=True, help="Print at once.")
@click.option("--disable-theme", is_flag=True, help="No colours.")
@json_option
def detailed_status(
    spec_or_workspace: Path,
    output: Path | None,
    dump: Path | None,
    no_prompts: bool,
    layout: str,
    disable_pager: bool,
    disable_theme: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """Show a study task by task; filters take several words and must all hold."""
    from merlin.cli.find import find_workspace
    from merlin.status.tasks import TaskFilters, task_rows

    check_dump(dump)
    workspace = find_workspace(spec_or_workspace, output=output, ask=not (no_prompts or as_json))
    rows = task_rows(workspace, TaskFilters(**filters))
    colours = is_terminal() and not disable_theme
    if dump is not None:
        found = list(rows)
        dump_file(dump, [plain(row) | {"parameters": _parameters(row)} for row in found], found)
        print(f"status written to {dump}")
    elif as_json:
        print_json(list(rows))
    elif is_terminal() and not disable_pager:
        click.echo_via_pager(line + "\n" for line in _lines(rows, layout, colours))
    else:
        for line in _lines(rows, layout, colours):
            print(line)


def _parameters(row: TaskRow) -> str:
    return " ".join(f"{name}={value}" for name, value in row.parameters.items())


def _lines(rows: Iterator[TaskRow], layout: str, colours: bool) -> Iterator[str]:
    """The lines of a layout, one at a time: there may be millions of tasks."""
    first = next(rows, None)
    if layout == "table":
        yield _padded(tuple(COLUMNS))
    if first is None:
        yield "no task passes these filters"
        return
    instance = None
    for row in chain([first], rows):
        seconds = "" if row.started is None else f"{row.seconds:.3f}"
        if layout == "table":
            yield _padded(
                (row.step, row.workspace, row.status, row.return_code, seconds, str(row.restarts or ""),
                 row.worker, row.task_queue, _parameters(row))
            )  # fmt: skip
            continue
        if row.instance != instance:
            instance = row.instance
            yield f"{row.instance}  queue {row.task_queue}  {_parameters(row)}".rstrip()
        status = f"{row.status:<11}"
        if colours:
            status = click.style(status, fg=_COLOURS.get(row.status))
        again = f"  {count(row.restarts, 'restart')}" if row.restarts else ""
        place = f"{row.workspace:<24}  {row.return_code:<12}  {seconds:>9}"
        yield f"  {status}  {place}  {row.worker}{again}".rstrip()


def _padded(cells: tuple[str, ...]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, COLUMNS.values(), strict=True)).rstrip()
