"""Runs studies here or hands them to workers, one after the other, whatever command began or changed them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from merlin.api.extending import waits_for
from merlin.api.left_to_run import refuse_published
from merlin.cli import execute, publishing
from merlin.cli.output import print_json, remark
from merlin.errors import WorkspaceError, command_line
from merlin.workspace.directory import Workspace

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.execution.conductor import RunOptions


class Work(Struct, frozen=True, kw_only=True):
    """A study or an extension that is to run."""

    study: Workspace
    options: RunOptions
    ways: Mapping[str, str] = field(default_factory=dict)  # to start workers, if not those of its workspace
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the command, for the report as JSON
    is_named: bool = False  # its path was printed already
    brings_workers: bool = False  # the command itself brings workers, so no hint how to start them is needed


def run_works(works: Iterable[Work], config: Config | None, *, as_json: bool) -> list[dict[str, Any]]:
    """Run or publish what is missing, study by study; the reports are shown as they come, or wanted as JSON.

    Extensions that need what the studies before them have not ended ok are left for later. Raises WorkspaceError if
    there is nothing but such.
    """
    reports: list[dict[str, Any]] = []
    for work in works:
        if missing := waits_for(work.study):
            words = f"{work.study.path} needs {missing}, which has not ended ok"
            if not reports:
                raise WorkspaceError(
                    f"{words}; first: {command_line('restart', work.study.root, '--failed')}"
                )
            remark(f"{words}; when it has: {command_line('restart', work.study.root)}")
            continue
        if config is None:
            refuse_published(work.study, remark)
            report = execute.run_the_rest(work.study, work.options)
        else:
            report = publishing.hand_over(work.study, config, work.options, **work.ways)
        reports.append({**report, **work.facts})
        if not as_json and config is None:
            execute.show_report(report, names_workspace=not work.is_named)
        elif not as_json:
            publishing.show_report(report, names_workers=not work.brings_workers)
        if report["exit_code"] == execute.EXIT_INTERRUPTED:
            break
    return reports


def told(reports: Sequence[dict[str, Any]], *, as_json: bool) -> int:
    """Print the reports of a study and its extensions as JSON, if that is wanted; returns the largest exit code."""
    code = max(int(report["exit_code"]) for report in reports)
    first, *others = reports
    if as_json:
        print_json({**first, "extensions": others, "exit_code": code} if others else first)
    return code
