"""`merlin failures` explains the failures of a study, grouped by cause."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.base.text import count, printable
from merlin.cli.argv import ManyCommand
from merlin.cli.options import json_option, rerun_options, spec_or_workspace_argument, steps_option
from merlin.cli.output import local_time, print_json
from merlin.errors import UsageError

if TYPE_CHECKING:
    from merlin.status.failures import FailureGroup
    from merlin.workspace.directory import Workspace


@click.command(cls=ManyCommand)
@spec_or_workspace_argument
@steps_option("--step", help="Only these.")
@click.option("--group", "groups", multiple=True, metavar="ID", help="Only this group; may repeat.")
@click.option("--rerun", "is_rerun", is_flag=True, help="Run these tasks again, and what depends on them.")
@rerun_options
@json_option
def failures(
    spec_or_workspace: Path,
    steps: tuple[str, ...],
    groups: tuple[str, ...],
    is_rerun: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Explain the failures of a study and its extensions, grouped by step, kind of end and message.

    The largest group comes first. Each shows with which values of the inputs tasks fail so more often than chance
    explains, examples, and the command that runs exactly these tasks again.
    """
    from merlin.cli.find import find_workspace

    workspace = find_workspace(spec_or_workspace)
    workspace.plan.check_steps(steps)
    if is_rerun:
        from merlin.cli.rerunning import RerunManner, run_again
        from merlin.views.rerunning import Choice

        choice = Choice(failed=True, groups=groups, steps=steps)
        sys.exit(run_again(workspace, choice, RerunManner(as_json=as_json, **how)))
    for word, value in how.items():
        if value:
            raise UsageError(f"--{word.replace('num_', '')} is for --rerun; give both")
    found = _groups(workspace, steps, groups)
    if as_json:
        print_json(found)
        return
    for group in found:
        _show(group)
    if found:
        print(f"{count(sum(g.count for g in found), 'failure')} in {count(len(found), 'group')}")
    else:
        print("no task has failed")


def _groups(workspace: Workspace, steps: tuple[str, ...], wanted: tuple[str, ...]) -> list[FailureGroup]:
    """The groups of a study and its extensions, the largest first. Raises UsageError for one that there is not."""
    from merlin.status.failures import group_failures
    from merlin.workspace.directory import shown_together

    found = [group for study in shown_together(workspace) for group in group_failures(study, steps=steps)]
    known = [group.id for group in found]
    for id in wanted:
        if id not in known:
            raise UsageError(f"there is no group {id!r} of failures; there are: {', '.join(known) or 'none'}")
    chosen = [group for group in found if not wanted or group.id in wanted]
    return sorted(chosen, key=lambda group: -group.count)


def _show(group: FailureGroup) -> None:
    from merlin.cli.advice import shown_inputs, shown_range
    from merlin.ledger.signature import normalise

    where = f" in {group.extension}" if group.extension else ""
    print(f"{group.step}: {count(group.count, 'task')} failed{where}, {group.exit_class}   [{group.id}]")
    if group.cause:
        print(f"  cause    {printable(group.cause)}")
    if group.signature not in ("", normalise(group.cause)):
        print(f"  message  {printable(group.signature)}")
    print(f"  when     {_when(group.first, group.last)}")
    print(f"  hosts    {', '.join(group.hosts)}")
    for each in group.ranges:
        print(f"  inputs   {shown_range(each)}")
    for example in group.examples:
        name = f"task {example.task}" if example.sample_id is None else f"sample {example.sample_id}"
        parts = (f"  example  {name}", example.directory, shown_inputs(example.inputs))
        print("  ".join(part for part in parts if part))
    if group.log_tail:
        print("  log")
        for line in printable(group.log_tail).splitlines():
            print(f"    | {line}")
    print(f"  again    {group.rerun}\n")


def _when(first: float, last: float) -> str:
    begin, end = local_time(first), local_time(last)
    return begin if begin == end else f"{begin} to {end[11:] if begin[:10] == end[:10] else end}"
