"""`merlin failures`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.base.text import count
from merlin.cli.argv import ManyCommand
from merlin.cli.options import check_steps, json_option, spec_or_workspace_argument, steps_option
from merlin.cli.output import print_json

if TYPE_CHECKING:
    from merlin.status.failures import FailureGroup

MAX_INPUTS, MAX_CHARS = 12, 40  # of an example: values, and characters of each


@click.command(cls=ManyCommand)
@spec_or_workspace_argument
@steps_option("--step", help="Only this.")
@json_option
def failures(spec_or_workspace: Path, steps: tuple[str, ...], as_json: bool) -> None:
    """Explain the failures of a study and its extensions, grouped by step, kind of end and message.

    The largest group comes first.
    """
    from merlin.cli.find import find_workspace
    from merlin.status.failures import group_failures
    from merlin.workspace.directory import shown_together

    workspace = find_workspace(spec_or_workspace)
    check_steps(workspace.plan, steps)
    groups = [group for study in shown_together(workspace) for group in group_failures(study, steps=steps)]
    groups.sort(key=lambda group: -group.count)
    if as_json:
        print_json(groups)
        return
    for group in groups:
        _show(group)
    if groups:
        print(f"{count(sum(g.count for g in groups), 'failure')} in {count(len(groups), 'group')}")
    else:
        print("no task has failed")


def _show(group: FailureGroup) -> None:
    where = f" in {group.extension}" if group.extension else ""
    print(f"{group.step}: {count(group.count, 'task')} failed{where}, {group.exit_class}")
    if group.cause:
        print(f"  cause    {group.cause}")
    print(f"  hosts    {', '.join(group.hosts)}")
    for example in group.examples:
        parts = (f"  example  task {example.task}", example.directory, shown_inputs(example.inputs))
        print("  ".join(part for part in parts if part))
    if group.log_tail:
        print("  log")
        for line in group.log_tail.splitlines():
            print(f"    | {line}")
    print(f"  again    {group.rerun}\n")


def shown_inputs(inputs: Mapping[str, Any]) -> str:
    """ "X=0.25 MODEL='a b'", cut where it is long."""
    shown = [f"{name}={_cut(value)}" for name, value in list(inputs.items())[:MAX_INPUTS]]
    more = len(inputs) - len(shown)
    return " ".join([*shown, *([f"… and {more} more"] if more else [])])


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"
