"""`merlin detailed-status` shows a study task by task, with filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from merlin.cli.argv import ManyCommand, ManyOption
from merlin.cli.options import json_option, number_option, steps_option, study_options
from merlin.cli.output import check_dump

F = TypeVar("F", bound=Callable[..., Any])
STATUSES = ("FINISHED", "FAILED", "CANCELLED", "INITIALIZED", "RUNNING", "DRY_RUN", "UNKNOWN")
CODES = ("SUCCESS", "SOFT_FAIL", "HARD_FAIL", "STOP_WORKERS", "RESTART", "RETRY", "DRY_SUCCESS")


def _filter(flag: str, text: str, words: Sequence[str] = ()) -> Callable[[F], F]:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        return [CompletionItem(word) for word in words if word.startswith(incomplete.upper())]

    return click.option(
        flag, cls=ManyOption, leaves_last=True, metavar="WORD …", help=text, shell_complete=complete
    )


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}."


@click.command(cls=ManyCommand)
@study_options
@_filter("--task-status", _listed(STATUSES), STATUSES)
@_filter("--return-code", _listed(CODES), CODES)
@steps_option("--steps", help="Only tasks of these steps.")
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
    """Show a study task by task; filters take several words and must all hold.

    On a terminal it is shown in a pager, that of $PAGER or less.
    """
    from merlin.cli import task_table
    from merlin.cli.find import find_workspace
    from merlin.status.tasks import TaskFilters

    check_dump(dump)
    workspace = find_workspace(spec_or_workspace, output=output, ask=not (no_prompts or as_json))
    chosen = TaskFilters(**filters)
    if dump is not None:
        task_table.dump_tasks(workspace, chosen, dump)
    elif as_json:
        task_table.print_tasks(workspace, chosen)
    else:
        task_table.show_tasks(
            workspace, chosen, layout=layout, with_pager=not disable_pager, with_theme=not disable_theme
        )
