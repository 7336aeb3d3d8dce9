"""`merlin doctor`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.cli.options import json_option

if TYPE_CHECKING:
    from merlin.views.doctor import Finding

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "broken": ("✗", "red"), "absent": ("–", "")}


@click.command()
@click.argument("directory", default=".", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
def doctor(directory: Path, as_json: bool) -> None:
    """Check packages, configuration, key, servers and workers, and whether workspaces can be in DIRECTORY.

    Exits with 1 if something is broken. Nothing is changed; a missing key is made.
    """
    from merlin.cli.output import flush, print_json
    from merlin.config.load import find_config
    from merlin.views.doctor import examine

    findings = []
    for finding in examine(find_config, directory.absolute()):
        findings.append(finding)
        if not as_json:
            show(finding)
            flush()
    num_broken = sum(finding.status == "broken" for finding in findings)
    if as_json:
        print_json({"findings": findings, "exit_code": 1 if num_broken else 0})
    else:
        num_warnings = sum(finding.status == "warning" for finding in findings)
        print(
            f"\n{num_broken or 'nothing is'} broken, {num_warnings or 'no'} warning{'s' * (num_warnings != 1)}"
        )
    flush()
    sys.exit(1 if num_broken else 0)


def show(finding: Finding) -> None:
    """Print one finding on a line, and its hint below."""
    from rich.text import Text

    from merlin.cli.output import console

    mark, colour = _MARKS[finding.status]
    latency = "" if finding.latency_ms is None else f"{finding.latency_ms:.1f} ms"
    first, *more = finding.detail.splitlines()
    line = Text.assemble(
        (mark, colour), f" {finding.component:<14}{finding.version:<16}{latency:>9}  {first}"
    )
    out = console()
    out.print(line)
    for text in [*more, *finding.hint.splitlines()]:
        out.print(Text(f"    {text.strip()}", style=colour))
