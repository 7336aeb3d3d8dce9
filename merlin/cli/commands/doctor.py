"""`merlin doctor` checks everything that a study on workers needs."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.base.text import count
from merlin.cli.options import EXISTING_FOLDER, json_option
from merlin.cli.output import console, flush, print_json

if TYPE_CHECKING:
    from merlin.views.doctor.finding import Finding

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "broken": ("✗", "red"), "absent": ("–", "")}


@click.command()
@click.argument("directory", default=".", type=EXISTING_FOLDER)
@json_option
def doctor(directory: Path, as_json: bool) -> None:
    """Check packages, configuration, key, servers and workers, and whether workspaces can be in DIRECTORY.

    Exits with 1 if something is broken. Nothing is changed; a missing key is made.
    """
    from merlin.config.load import find_config
    from merlin.views.doctor.examine import examine

    findings = []
    for finding in examine(find_config, directory.absolute()):
        findings.append(finding)
        if not as_json:
            _show(finding)
            flush()
    num = Counter(finding.status for finding in findings)
    if as_json:
        print_json({"findings": findings, "exit_code": 1 if num["broken"] else 0})
    else:
        warnings = count(num["warning"], "warning") if num["warning"] else "no warnings"
        print(f"\n{num['broken'] or 'nothing is'} broken, {warnings}")
    sys.exit(1 if num["broken"] else 0)


def _show(finding: Finding) -> None:
    """Print one finding on a line, and its hint below."""
    from rich.text import Text

    mark, colour = _MARKS[finding.status]
    latency = "" if finding.latency_ms is None else f"{finding.latency_ms:.1f} ms"
    first, *more = finding.detail.splitlines()
    facts = f" {finding.component:<14}{finding.version:<16}{latency:>9}  {first}"
    out = console()
    out.print(Text.assemble((mark, colour), facts))
    for text in [*more, *finding.hint.splitlines()]:
        out.print(Text(f"    {text.strip()}", style=colour))
