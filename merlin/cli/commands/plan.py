"""`merlin plan`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.cli.argv import ManyCommand
from merlin.cli.options import (
    check_new_rows,
    extend_options,
    json_option,
    parse_assignments,
    spec_argument,
    spec_options,
)
from merlin.errors import UsageError

if TYPE_CHECKING:
    from merlin.cli.forecast import Forecast
    from merlin.plan.plan import Plan
    from merlin.workspace.prepare import StudyOptions

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
    from merlin.cli.extending import preview
    from merlin.cli.forecast import forecast
    from merlin.cli.graph import graph_of, mermaid
    from merlin.cli.output import print_json, warn
    from merlin.workspace.checking import load_checked
    from merlin.workspace.local_launcher import launch_warnings
    from merlin.workspace.prepare import plan_only

    if as_json and as_mermaid:
        raise UsageError("--json and --mermaid exclude each other; choose one")
    check_new_rows(study, only_new)
    loaded = load_checked(spec, parse_assignments(assignments), options)
    if study is None:
        made = plan_only(loaded, options)
    else:
        made = preview(loaded, options, study, only_new=only_new, as_json=as_json)
    warn([*loaded.warnings, *launch_warnings(loaded, made)])
    if as_mermaid:
        print(mermaid(graph_of(made)))
    elif as_json:
        graph = [
            {
                "step": n.name,
                "kind": n.kind,
                "instances": n.num_instances,
                "tasks": n.num_tasks,
                "after": n.sources,
            }
            for n in graph_of(made)
        ]
        print_json({"spec": spec, "forecast": forecast(made), "graph": graph})
    else:
        _show(made, forecast(made))


def _show(made: Plan, facts: Forecast) -> None:
    from merlin.base.text import count
    from merlin.cli.drawing import LEGEND, draw
    from merlin.cli.forecast import UNKNOWN
    from merlin.cli.graph import graph_of
    from merlin.cli.output import console, table

    out = console()
    print(f"{facts.name}\n")
    if made.extension and made.samples is not None:
        last = f" to {made.samples.first + made.samples.num - 1:,}" if made.samples.num else " on"
        print(f"samples {made.samples.first:,}{last} of the study, in {made.workspace}\n")
    print(draw(graph_of(made), width=shutil.get_terminal_size((100, 24)).columns))
    print(f"\n{LEGEND}\n")
    shown = facts.instances[:MAX_ROWS]
    rows = [
        (
            i.id,
            i.kind,
            *("unknown" if n is None else f"{n:,}" for n in (i.num_tasks, i.num_directories, i.num_files)),
            ", ".join(i.waits_for),
        )
        for i in shown
    ]
    columns = ("step instance", "kind", "tasks", "directories", "files", "waits for")
    out.print(table(columns, rows, right=("tasks", "directories", "files")))
    if len(facts.instances) > len(shown):
        print(f"… and {count(len(facts.instances) - len(shown), 'more step instance')} (--json shows all)")
    if facts.num_samples is not None:
        print(f"\n{count(facts.num_samples, 'sample')} of {', '.join(facts.columns) or 'unnamed columns'}")
    elif facts.columns:
        print(f"\nsamples of {', '.join(facts.columns)}: {UNKNOWN}")
    print(f"\n{_totals(facts)}\n(files that the commands of the steps write are not counted)")


def _totals(facts: Forecast) -> str:
    from merlin.base.text import count
    from merlin.cli.forecast import UNKNOWN

    numbers = {
        ("step instance", "step instances"): len(facts.instances),
        ("task", "tasks"): facts.num_tasks,
        ("directory", "directories"): facts.num_directories,
        ("file", "files"): facts.num_files,
        ("shard", "shards"): facts.num_shards,
    }
    known = ", ".join(count(n, *words) for words, n in numbers.items() if n is not None)
    unknown = ", ".join(plural for (_, plural), n in numbers.items() if n is None)
    return f"{known}\n{unknown}: {UNKNOWN}" if unknown else known
