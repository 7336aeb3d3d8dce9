"""`merlin failures`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from merlin.cli.argv import ManyCommand, ManyOption
from merlin.cli.options import json_option
from merlin.errors import UsageError

MAX_INPUTS, MAX_CHARS = 12, 40  # of an example: values, and characters of each


@click.command(cls=ManyCommand)
@click.argument("spec_or_workspace", type=click.Path(exists=True, path_type=Path))
@click.option("--step", "steps", cls=ManyOption, leaves_last=True, metavar="STEP …", help="Only this.")
@json_option
def failures(spec_or_workspace: Path, steps: tuple[str, ...], as_json: bool) -> None:
    """Explain the failures of a study and its extensions, grouped by step, kind of end and message.

    The largest group comes first.
    """
    from merlin.base.text import count
    from merlin.cli.find import find_workspace
    from merlin.cli.output import print_json
    from merlin.status.failures import group_failures
    from merlin.workspace.directory import shown_together

    workspace = find_workspace(spec_or_workspace)
    known = {i.step: None for i in workspace.plan.instances}
    for step in steps:
        if step not in known:
            raise UsageError(f"the study has no step {step!r}; it has: {', '.join(known)}")
    studies = shown_together(workspace)
    groups = [group for study in studies for group in group_failures(study, steps=steps)]
    groups.sort(key=lambda group: -group.count)
    if as_json:
        print_json(groups)
        return
    if not groups:
        print("no task has failed")
    for group in groups:
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
    if groups:
        print(f"{count(sum(g.count for g in groups), 'failure')} in {count(len(groups), 'group')}")


def shown_inputs(inputs: Mapping[str, Any]) -> str:
    """ "X=0.25 MODEL='a b'", cut where it is long."""
    shown = [f"{name}={_cut(value)}" for name, value in list(inputs.items())[:MAX_INPUTS]]
    more = len(inputs) - len(shown)
    return " ".join([*shown, *([f"… and {more} more"] if more else [])])


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"
