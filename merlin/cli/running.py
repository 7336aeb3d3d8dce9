"""Runs studies here or hands them to workers, one after the other, whatever command began or changed them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from merlin.api.extending import waits_for
from merlin.api.left_to_run import has_work, refuse_published, why_nothing
from merlin.cli import execute, publishing
from merlin.cli.output import plain, print_json, remark
from merlin.errors import WorkspaceError, command_line
from merlin.plan.reopen import NOTHING
from merlin.views.run_report import EXIT_INTERRUPTED, RunReport
from merlin.workspace.directory import Workspace

if TYPE_CHECKING:
    from merlin.api.publishing import Published
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


class Reported(Struct, frozen=True, kw_only=True):
    """What became of a work."""

    report: RunReport | Published
    facts: Mapping[str, Any]  # of the command

    @property
    def needs_workers(self) -> bool:
        """It was published, and tasks are left to run."""
        return not isinstance(self.report, RunReport) and not self.report.complete


def run_works(works: Iterable[Work], config: Config | None, *, as_json: bool) -> list[Reported]:
    """Run or publish what is missing, study by study; the reports are shown as they come, or wanted as JSON.

    Extensions that need what the studies before them have not ended ok are left for later. Raises WorkspaceError if
    there is nothing but such.
    """
    reports: list[Reported] = []
    for work in works:
        if missing := waits_for(work.study):
            words = f"{work.study.path} needs {missing}, which has not ended ok"
            if not reports:
                raise WorkspaceError(
                    f"{words}; first: {command_line('restart', work.study.root, '--failed')}"
                )
            remark(f"{words}; when it has: {command_line('restart', work.study.root)}")
            continue
        run = _run_here(work, as_json=as_json) if config is None else _publish(work, config, as_json=as_json)
        reports.append(Reported(report=run, facts=work.facts))
        if run.exit_code == EXIT_INTERRUPTED:
            break
    return reports


def _run_here(work: Work, *, as_json: bool) -> RunReport:
    refuse_published(work.study, remark)
    report = execute.run_the_rest(work.study, work.options)
    if not as_json:
        execute.show_report(report, names_workspace=not work.is_named)
    return report


def _publish(work: Work, config: Config, *, as_json: bool) -> Published:
    from merlin.api.publishing import hand_over  # runs on this machine do not need it

    again = work.options.again
    is_idle = bool(again.steps) and not has_work(work.study, again)
    report = hand_over(work.study, config, NOTHING if is_idle else again, remark, **work.ways)
    if is_idle:
        report = replace(report, note=why_nothing(work.study, again))
    if not as_json:
        publishing.show_report(report, names_workers=not work.brings_workers)
    return report


def told(reports: Sequence[Reported], *, as_json: bool) -> int:
    """Print the reports of a study and its extensions as JSON, if that is wanted; returns the largest exit code."""
    code = max(each.report.exit_code for each in reports)
    if as_json:
        first, *others = ({**plain(each.report), **each.facts} for each in reports)
        print_json({**first, "extensions": others, "exit_code": code} if others else first)
    return code
