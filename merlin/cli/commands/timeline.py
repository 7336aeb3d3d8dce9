"""`merlin timeline` writes who ran what when, for Perfetto, Chrome or OpenTelemetry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.base.text import count
from merlin.cli.options import FILE, json_option, spec_or_workspace_argument
from merlin.cli.output import print_json, remark
from merlin.errors import UsageError

if TYPE_CHECKING:
    from merlin.workspace.directory import Workspace


@click.command()
@spec_or_workspace_argument
@click.option(
    "-o", "--out", type=FILE, metavar="FILE", help="A trace for Perfetto or Chrome: .json or .json.gz."
)
@click.option("--otlp", default="", metavar="URL", help="Send spans to a collector of OpenTelemetry.")
@click.option("--otlp-json", type=FILE, metavar="FILE", help="Write the spans as JSON, a request in a line.")
@json_option
def timeline(
    spec_or_workspace: Path, out: Path | None, otlp: str, otlp_json: Path | None, as_json: bool
) -> None:
    """Write what the workers of a study ran, and when, with its batch jobs and events.

    All is read from the ledger, so it may be asked for at any time, also while the study runs.

    \b
    merlin timeline WORKSPACE -o trace.json           # open it in https://ui.perfetto.dev
    merlin timeline WORKSPACE --otlp http://localhost:4318
    """
    from merlin.cli.find import find_workspace

    if not (out or otlp or otlp_json):
        raise UsageError("say where to: -o trace.json, --otlp URL or --otlp-json FILE")
    if out is not None and not out.name.endswith((".json", ".json.gz")):
        raise UsageError(f"-o writes .json or .json.gz, not {out.name!r}")
    workspace = find_workspace(spec_or_workspace)
    report: dict[str, Any] = {"workspace": workspace.path, "exit_code": 0}
    if out is not None:
        report["trace"] = _trace(workspace, out, as_json)
    if otlp_json is not None:
        from merlin.views.otlp import write_otlp_json

        report["spans"] = write_otlp_json(workspace, otlp_json)
        _say(f"{count(report['spans'], 'span')} in {otlp_json}", as_json)
    if otlp:
        from merlin.views.otlp import send_otlp

        report["sent"] = send_otlp(workspace, otlp)
        _say(f"{count(report['sent'], 'span')} sent to {otlp}", as_json)
    if as_json:
        print_json(report)


def _trace(workspace: Workspace, out: Path, as_json: bool) -> Any:
    from merlin.views.timeline import write_trace

    written = write_trace(workspace, out)
    slices = f"{count(written.slices, 'slice')} of {count(written.workers, 'worker')}"
    _say(f"{slices} on {count(written.hosts, 'host')} in {out}", as_json)
    if not as_json:
        remark("open it in https://ui.perfetto.dev, or in chrome://tracing")
    return written


def _say(text: str, as_json: bool) -> None:
    if not as_json:
        print(text)
