"""`merlin detailed-status`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from merlin.cli.argv import ManyCommand, ManyOption
from merlin.cli.options import json_option, study_options

if TYPE_CHECKING:
    from merlin.status.tasks import TaskRow

F = TypeVar("F", bound=Callable[..., Any])

# column -> width; a longer cell pushes the rest of its line along, so that lines can be written at once
COLUMNS = {
    "step": 14, "workspace": 26, "status": 11, "return code": 12, "seconds": 9, "restarts": 8, "worker": 8,
    "queue": 10, "parameters": 0,
}  # fmt: skip
_COLOURS = {
    "FINISHED": "green",
    "FAILED": "red",
    "CANCELLED": "yellow",
    "INITIALIZED": "cyan",
    "DRY_RUN": "magenta",
}


def _filter(flag: str, text: str) -> Callable[[F], F]:
    return click.option(flag, cls=ManyOption, leaves_last=True, metavar="WORD …", help=text)


@click.command(cls=ManyCommand)
@study_options
@_filter("--task-status", "FINISHED, FAILED, CANCELLED, INITIALIZED, RUNNING, DRY_RUN or UNKNOWN.")
@_filter("--return-code", "SUCCESS, SOFT_FAIL, HARD_FAIL, STOP_WORKERS, RESTART, RETRY or DRY_SUCCESS.")
@_filter("--steps", "Only tasks of these steps.")
@_filter("--task-queues", "Only tasks of these queues.")
@_filter("--workers", "Only tasks that these workers ran, named as in the spec or as the status shows them.")
@click.option("--max-tasks", type=click.IntRange(min=1), metavar="N", help="At most so many tasks.")
@click.option("--layout", type=click.Choice(["default", "table"]), default="default", show_default=True)
@click.option("--disable-pager", is_flag=True, help="Print at once.")
@click.option("--disable-theme", is_flag=True, help="No colours.")
@json_option
def detailed_status(
    spec_or_workspace: Path,
    output: Path | None,
    dump: Path | None,
    no_prompts: bool,
    task_server: str,
    task_status: tuple[str, ...],
    return_code: tuple[str, ...],
    steps: tuple[str, ...],
    task_queues: tuple[str, ...],
    workers: tuple[str, ...],
    max_tasks: int | None,
    layout: str,
    disable_pager: bool,
    disable_theme: bool,
    as_json: bool,
) -> None:
    """Show a study task by task; filters take several words and must all hold."""
    from merlin.cli.find import find_workspace
    from merlin.cli.output import check_dump, dump_file, is_terminal, print_json
    from merlin.status.tasks import TaskFilters, task_rows

    check_dump(dump)
    filters = TaskFilters(
        task_status=task_status,
        return_code=return_code,
        steps=steps,
        task_queues=task_queues,
        workers=workers,
        max_tasks=max_tasks,
    )
    workspace = find_workspace(spec_or_workspace, output=output, ask=not (no_prompts or as_json))
    rows = task_rows(workspace, filters)
    if dump is not None:
        found = list(rows)
        dump_file(dump, [_flat(row) for row in found], found)
        print(f"status written to {dump}")
    elif as_json:
        print_json(list(rows))
    elif is_terminal() and not disable_pager:
        click.echo_via_pager(line + "\n" for line in lines(rows, layout, colours=not disable_theme))
    else:
        for line in lines(rows, layout, colours=is_terminal() and not disable_theme):
            print(line)


def _flat(row: TaskRow) -> dict[str, Any]:
    """A task as a row of a CSV file."""
    from merlin.cli.output import jsonable

    facts = jsonable(row)
    facts["parameters"] = _parameters(row)
    return dict(facts)


def _parameters(row: TaskRow) -> str:
    return " ".join(f"{name}={value}" for name, value in row.parameters.items())


def _cells(row: TaskRow) -> tuple[str, ...]:
    seconds = "" if row.started is None else f"{row.seconds:.3f}"
    return (
        row.step,
        row.workspace,
        row.status,
        row.return_code,
        seconds,
        str(row.restarts or ""),
        row.worker,
        row.task_queue,
        _parameters(row),
    )


def _padded(cells: tuple[str, ...]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, COLUMNS.values(), strict=True)).rstrip()


def lines(rows: Iterable[TaskRow], layout: str, *, colours: bool) -> Iterable[str]:
    """The lines of a layout, one at a time: there may be millions of tasks."""
    from merlin.base.text import count

    num = 0
    instance = None
    if layout == "table":
        yield _padded(tuple(COLUMNS))
    for row in rows:
        num += 1
        if layout == "table":
            yield _padded(_cells(row))
            continue
        if row.instance != instance:
            instance = row.instance
            yield f"{row.instance}  queue {row.task_queue}  {_parameters(row)}".rstrip()
        status = f"{row.status:<11}"
        if colours:
            status = click.style(status, fg=_COLOURS.get(row.status))
        _, workspace, _, code, seconds, _, worker, *_ = _cells(row)
        again = f"  {count(row.restarts, 'restart')}" if row.restarts else ""
        yield f"  {status}  {workspace:<24}  {code:<12}  {seconds:>9}  {worker}{again}".rstrip()
    if not num:
        yield "no task passes these filters"
