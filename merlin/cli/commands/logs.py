"""`merlin logs` shows what tasks have printed: those of a sample, or all that failed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from merlin.cli.argv import ManyCommand
from merlin.cli.options import json_option, spec_or_workspace_argument, steps_option
from merlin.errors import UsageError


class SampleId(click.IntRange):
    """The id of a sample; whoever names a step is told how."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            raise click.BadParameter(
                f"{error.message} A step is named by --step {value}.", ctx, param
            ) from None


@click.command(cls=ManyCommand)
@spec_or_workspace_argument
@click.argument("sample", type=SampleId(min=0), required=False)
@click.option("--failed", is_flag=True, help="Of all tasks that have failed.")
@steps_option("--step", help="Only of these steps; without SAMPLE, steps that run once.")
@click.option("-f", "--follow", is_flag=True, help="Go on while the tasks run.")
@json_option
def logs(
    spec_or_workspace: Path,
    sample: int | None,
    failed: bool,
    steps: tuple[str, ...],
    follow: bool,
    as_json: bool,
) -> None:
    """Print the output of the tasks of SAMPLE, an id, step by step; or of all tasks that failed.

    The log of a function belongs to the worker that called it, so its end is shown, and the traceback.
    """
    from merlin.cli.find import find_workspace
    from merlin.cli.task_logs import follow_failures, follow_tasks, show_logs
    from merlin.views.logs import TaskLogs, logs_of_failures

    if (sample is not None) == failed and not (steps and not failed):
        raise UsageError(
            "say whose logs: the id of a sample, --failed, or --step NAME of a step that runs once"
        )
    if follow and as_json:
        raise UsageError("-f prints as it goes, and --json prints one document; choose one")
    workspace = find_workspace(spec_or_workspace)
    workspace.plan.check_steps(steps)
    try:
        if failed and follow:
            follow_failures(workspace, steps)
        elif failed:
            if not show_logs(logs_of_failures(workspace, steps), as_json=as_json) and not as_json:
                print("no task has failed")
        elif follow:
            follow_tasks(workspace, TaskLogs(workspace, sample, steps))
        else:
            show_logs(TaskLogs(workspace, sample, steps).look(), as_json=as_json)
    except KeyboardInterrupt:
        sys.exit(130)
