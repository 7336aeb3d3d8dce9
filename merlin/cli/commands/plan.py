"""`merlin plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.base.text import count
from merlin.cli.argv import ManyCommand
from merlin.cli.options import (
    check_new_rows,
    extend_options,
    json_option,
    parse_assignments,
    spec_argument,
    spec_options,
)
from merlin.cli.output import print_json, print_table, warn
from merlin.errors import UsageError

if TYPE_CHECKING:
    from merlin.plan.plan import Plan
    from merlin.views.forecast import Forecast
    from merlin.views.graph import Node
    from merlin.workspace.options import StudyOptions

MAX_ROWS = 40  # of the table of step instances


@click.command(cls=ManyCommand)
@spec_argument
@spec_options
@json_option
@extend_options
@click.option(
    "--mermaid", "as_mermaid", is_flag=True, help="Print the graph of steps as a Mermaid flowchart."
)
def plan(
    spec: Path,
    assignments: tuple[str, ...],
    options: StudyOptions,
    as_json: bool,
    study: Path | None,
    only_new: bool,
    as_mermaid: bool,
) -> None:
    """Show what SPEC will run and write: step instances, samples, tasks, directories, files, and the graph.

    Nothing is run or written, so the time does not depend on the number of samples. With --extend, it is what
    merlin run SPEC --extend WORKSPACE would add.
    """
    from merlin.views.forecast import forecast
    from merlin.views.graph import graph_of, mermaid

    if as_json and as_mermaid:
        raise UsageError("--json and --mermaid exclude each other; choose one")
    check_new_rows(study, only_new)
    made = _made(spec, parse_assignments(assignments), options, study, only_new, as_json)
    facts, nodes = forecast(made), graph_of(made)
    if as_mermaid:
        print(mermaid(nodes))
    elif as_json:
        print_json({"spec": spec, "forecast": facts, "graph": nodes})
    else:
        _show(made, facts, nodes)


def _made(
    spec: Path,
    variables: dict[str, str],
    options: StudyOptions,
    study: Path | None,
    only_new: bool,
    as_json: bool,
) -> Plan:
    """The plan of a spec, or of the next extension of `study`."""
    from merlin.cli.extending import preview
    from merlin.workspace.checking import load_checked
    from merlin.workspace.local_launcher import launch_warnings
    from merlin.workspace.prepare import plan_only

    loaded = load_checked(spec, variables, options)
    if study is None:
        made = plan_only(loaded, options)
    else:
        made = preview(loaded, options, study, only_new=only_new, as_json=as_json)
    warn([*loaded.warnings, *launch_warnings(loaded, made)])
    return made


def _show(made: Plan, facts: Forecast, nodes: list[Node]) -> None:
    from merlin.views.forecast import UNKNOWN
    from merlin.views.graph import listing

    print(f"{facts.name}\n")
    if made.extension and made.samples is not None:
        last = f" to {made.samples.first + made.samples.num - 1:,}" if made.samples.num else " on"
        print(f"samples {made.samples.first:,}{last} of the study, in {made.workspace}\n")
    print("\n".join(listing(nodes)), end="\n\n")
    rows = []
    for i in facts.instances[:MAX_ROWS]:
        numbers = (i.num_tasks, i.num_directories, i.num_files)
        shown = ("unknown" if n is None else f"{n:,}" for n in numbers)
        rows.append((i.id, i.kind, *shown, ", ".join(i.waits_for)))
    columns = ("step instance", "kind", "tasks", "directories", "files", "waits for")
    print_table(columns, rows, right=("tasks", "directories", "files"))
    if hidden := len(facts.instances) - len(rows):
        print(f"… and {count(hidden, 'more step instance')} (--json shows all)")
    if facts.num_samples is not None:
        print(f"\n{count(facts.num_samples, 'sample')} of {', '.join(facts.columns) or 'unnamed columns'}")
    elif facts.columns:
        print(f"\nsamples of {', '.join(facts.columns)}: {UNKNOWN}")
    print(f"\n{_totals(facts, UNKNOWN)}\n(files that the commands of the steps write are not counted)")


def _totals(facts: Forecast, unknown: str) -> str:
    numbers = {
        ("step instance", "step instances"): len(facts.instances),
        ("task", "tasks"): facts.num_tasks,
        ("directory", "directories"): facts.num_directories,
        ("file", "files"): facts.num_files,
        ("shard", "shards"): facts.num_shards,
    }
    known = ", ".join(count(n, *words) for words, n in numbers.items() if n is not None)
    open_ones = ", ".join(plural for (_, plural), n in numbers.items() if n is None)
    return f"{known}\n{open_ones}: {unknown}" if open_ones else known
