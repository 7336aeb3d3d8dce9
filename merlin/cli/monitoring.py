"""Shows studies that others run until they have ended, one after another."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from merlin.cli.execute import show_report
from merlin.cli.find import find_workspace
from merlin.cli.output import plain, print_json, remark, stderr_is_terminal
from merlin.cli.progress import choose_display
from merlin.config.load import find_config, require_config
from merlin.errors import command_line
from merlin.execution.distributed.leaving import lease_s
from merlin.execution.events import RunSummary
from merlin.execution.job_counts import count_jobs
from merlin.execution.job_folder import all_jobs
from merlin.ledger.replay import replay
from merlin.plan.outcome_counts import summed
from merlin.status.snapshot import take_snapshot, was_published
from merlin.views.published import PublishedStudy
from merlin.views.run_report import RunReport, report_of, run_seconds
from merlin.views.servers import open_registry
from merlin.views.unowned import StallNotices
from merlin.views.watch import Watch, WatchedStudy, follow
from merlin.views.watched import next_on_queues, watched_study
from merlin.views.ways_to_start import ways_to_start
from merlin.workspace.directory import Workspace, shown_together

LIVE_S, LINES_S = 0.5, 2.0  # between two looks, for bars and for lines
NOTICE_S = 5.0  # beyond a beat of the workers: by then they have seen that Redis lost the study


def follow_all(
    spec_or_workspace: Path,
    variables: Mapping[str, str],
    steps: Collection[str],
    sleep_s: float | None,
    as_json: bool,
) -> int:
    """Show the study of a spec or workspace, and then those on the same queues; returns the worst exit code."""
    workspace = _newest(find_workspace(spec_or_workspace, variables=variables))
    workspace.plan.check_steps(steps, also=("all",))
    chosen = () if "all" in steps else steps
    queues = {i.queue for i in workspace.plan.instances if not chosen or i.step in chosen}
    reports = [_follow(workspace, watched_study(workspace), chosen, sleep_s, as_json=as_json)]
    state = replay(workspace.ledger_dir, workspace.plan)
    config = find_config() if spec_or_workspace.is_file() and was_published(state) else None
    if config is not None:
        seen = {workspace.plan.study_id}
        while (found := next_on_queues(config, queues, seen, remark)) is not None:
            remark(f"watching {found.workspace.path}, which uses the same queues")
            reports.append(_follow(found.workspace, found.study, found.steps, sleep_s, as_json=as_json))
    code = max(report.exit_code for report in reports)
    if as_json:
        print_json({**plain(reports[0]), "exit_code": code, "followed_by": reports[1:]})
    return code


def _newest(workspace: Workspace) -> Workspace:
    """The last extension with anything to do, else the study itself."""
    _, *extensions = shown_together(workspace)
    for extension in reversed(extensions):
        if take_snapshot(extension).totals.missing:
            remark(f"watching {extension.path}")
            return extension
    return workspace


def _follow(
    workspace: Workspace, study: WatchedStudy, steps: Collection[str], sleep_s: float | None, *, as_json: bool
) -> RunReport:
    """Show one study until it (or its `steps`) has ended; returns the report, and prints it for people."""
    start = ways_to_start(workspace.plan, workspace.path)
    stalls = StallNotices(workspace, _is_anybody_there, remark)
    watch = Watch(steps, gone_s=lease_s() / 4 + NOTICE_S, workers_command=start)
    try:
        with choose_display() as display:
            follow(
                study,
                watch,
                display,
                workspace.plan,
                interval_s=sleep_s or (LIVE_S if stderr_is_terminal() else LINES_S),
                clock=time.monotonic,
                sleep=time.sleep,
                jobs=lambda: _jobs(workspace, steps),
                on_look=stalls.tell if isinstance(study, PublishedStudy) else lambda look: None,
            )
    except KeyboardInterrupt:
        remark(f"the study goes on; to end it: {command_line('cancel', workspace.path)}")
        sys.exit(130)
    report = _report(workspace, watch, steps)
    if not as_json:
        show_report(report)
    return report


def _is_anybody_there() -> bool:
    """Return whether a worker is alive: each of them may own any study."""
    return bool(open_registry(require_config()).workers())


def _jobs(workspace: Workspace, steps: Collection[str]) -> list[str]:
    """A line for each step (of those chosen) with batch jobs of its own. Raises WorkspaceError if the study is gone."""
    workspace.require_there()
    chosen = {i.id for i in workspace.plan.instances if not steps or i.step in steps}
    return [str(counts) for counts in count_jobs(all_jobs(workspace)) if counts.instance in chosen]


def _report(workspace: Workspace, watch: Watch, steps: Collection[str]) -> RunReport:
    """How the study (or these steps, if there are any) ended, from the ledger, as merlin run reports it."""
    totals = summed(watch.per_step.values())
    seconds = run_seconds(workspace)
    summary = RunSummary(**totals, stop_reason=watch.reason, seconds=seconds, per_step=watch.per_step)
    return report_of(workspace, summary, steps)
