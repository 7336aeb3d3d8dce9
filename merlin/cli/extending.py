"""A study and its extensions on the command line: extending, restarting and showing them together."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from merlin.base.text import count
from merlin.cli import execute, publishing
from merlin.cli.output import print_json, remark
from merlin.errors import UsageError, WorkspaceError, command_line
from merlin.ledger.replay import replay
from merlin.plan.growing import relied_on, users_of_data_sets
from merlin.plan.plan import Plan
from merlin.plan.tasks import Outcome
from merlin.status.live import is_live
from merlin.status.snapshot import take_snapshot
from merlin.views.ways_to_start import jobs_command
from merlin.workspace.directory import Workspace, members, open_workspace, shown_together

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.execution.conductor import RunOptions
    from merlin.spec.load import Spec
    from merlin.workspace.options import StudyOptions


def extend(spec: Spec, options: StudyOptions, path: Path, *, only_new: bool, as_json: bool) -> Workspace:
    """Plan the next extension of the study at `path`; ends the command if there are no new samples.

    Raises:
        WorkspaceError: the study or one of its extensions runs, or lacks what the new samples need.
        SpecError: the spec does not describe the study, or its samples do not continue the study's.
    """
    from merlin.shards.writing.growing import require_members
    from merlin.workspace.extend import prepare_extension

    study = _open_study(path)
    studies = members(study)
    for member in studies:
        if is_live(member):
            raise WorkspaceError(f"{member.path} runs; wait for its end, or stop it, and then extend it")
        publishing.refuse_published(member)
    _require_settled(study)
    _require_data_sets(studies)
    for instance in study.plan.instances:
        if instance.aggregate is not None:
            require_members(study.data_set_dir(instance), studies)
    made = prepare_extension(spec, options, study, only_new=only_new, note=remark)
    if made is None:
        sys.exit(_nothing_to_add(studies, as_json=as_json))
    _announce(studies, made)
    return made


def preview(spec: Spec, options: StudyOptions, path: Path, *, only_new: bool, as_json: bool) -> Plan:
    """The plan of the next extension of the study at `path`; ends the command if there are no new samples.

    Raises:
        SpecError: the spec does not describe the study, or its samples do not continue the study's.
    """
    from merlin.workspace.extend import plan_extension

    study = _open_study(path)
    plan = plan_extension(spec, options, study, only_new=only_new)
    if plan is None:
        sys.exit(_nothing_to_add(members(study), as_json=as_json))
    return plan


def _open_study(path: Path) -> Workspace:
    study = open_workspace(path)
    if study.plan.extension:
        raise UsageError(f"{path} is an extension itself; give the study: --extend {study.root}")
    return study


def _require_settled(study: Workspace) -> None:
    """What the study did once for all samples is not done again, so it has to be there. Raises WorkspaceError."""
    outcomes = replay(study.ledger_dir, study.plan).outcomes
    wanted = [study.instance(id) for id in relied_on(study.plan)]
    lacking = [
        i.id
        for i in wanted
        if i.on_failure == "skip"
        and outcomes[i.id].ranges([Outcome.OK, Outcome.SOFT_FAILED]) != [(0, i.num_tasks)]
    ]
    if lacking:
        first = command_line("restart", study.path)
        raise WorkspaceError(
            f"{', '.join(lacking)}, which the new samples need, has not ended ok; first: {first}"
        )


def _require_data_sets(studies: Sequence[Workspace]) -> None:
    """Steps of the extension that work on a data set must find all rows before their own. Raises WorkspaceError."""
    users = users_of_data_sets(studies[0].plan)
    for study in studies:
        outcomes = replay(study.ledger_dir, study.plan).outcomes
        for manifest, steps in users.items():
            if manifest in outcomes and outcomes[manifest][0] != Outcome.OK:
                first = command_line("restart", study.root)
                raise WorkspaceError(
                    f"{', '.join(steps)} would work on a data set that is not finished; first: {first}"
                )


def _nothing_to_add(studies: Sequence[Workspace], *, as_json: bool) -> int:
    """Say so; 0, or 1 if one of the studies is not finished."""
    num = sum(study.plan.samples.num for study in studies if study.plan.samples is not None)
    open_ones = [study for study in studies if take_snapshot(study).totals.missing]
    code = 1 if open_ones else 0
    path = studies[0].path
    note = f"nothing to add: {path} has {count(num, 'sample')}, as many as the spec says in all"
    if as_json:
        print_json({"workspace": path, "samples": num, "new_samples": 0, "exit_code": code, "note": note})
    else:
        print(note)
    for study in open_ones:
        remark(f"not finished: {command_line('restart', study.path)}")
    return code


def _announce(studies: Sequence[Workspace], made: Workspace) -> None:
    assert made.plan.samples is not None
    new, first = made.plan.samples.num, made.first_sample
    remark(
        f"{count(new, 'new sample')}, {first:,} to {first + new - 1:,}, in {made.path}; "
        f"the study has {first + new:,} in all"
    )
    if any(take_snapshot(study).totals.missing for study in studies):
        remark(
            f"what was there before is not finished; {command_line('restart', made.root)} does that, "
            "and the data sets get the new rows then"
        )


# ----------------------------------------------------------------------------------------- restart


def to_restart(opened: Workspace, *, failed: bool) -> list[Workspace]:
    """The study and those of its extensions that a restart has to do with; at least the one that was named."""
    studies = shown_together(opened)
    if len(studies) == 1:
        return studies
    return [study for study in studies if execute.has_work(study, failed=failed)] or [opened]


def restart_all(
    studies: Sequence[Workspace], config: Config | None, options: RunOptions, *, as_json: bool
) -> int:
    """Run or publish what is missing, study by study, and report; returns the largest exit code."""
    reports: list[dict[str, Any]] = []
    show = execute.show_report if config is None else publishing.show_report
    for study in studies:
        if config is None:
            publishing.refuse_published(study)
            report = execute.run_the_rest(study, options)
        else:
            command = command_line("run-workers", study.path)
            jobs = jobs_command(study.plan, study.path)
            report = publishing.hand_over(study, config, options, workers_command=command, jobs_command=jobs)
        reports.append(report)
        if not as_json:
            show(report)
        if report["exit_code"] == execute.EXIT_INTERRUPTED:
            break
    code = max(int(report["exit_code"]) for report in reports)
    first, *others = reports
    if as_json:
        print_json({**first, "extensions": others, "exit_code": code} if others else first)
    return code
