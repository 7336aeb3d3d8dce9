"""A study and its extensions on the command line: extending, restarting and showing them together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from merlin.base.text import count
from merlin.cli.output import print_json
from merlin.errors import UsageError, WorkspaceError, command_line

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.plan.plan import Plan
    from merlin.spec.load import Spec
    from merlin.workspace.directory import Workspace
    from merlin.workspace.options import StudyOptions


def extend(spec: Spec, options: StudyOptions, path: Path, *, only_new: bool, as_json: bool) -> Workspace:
    """Plan the next extension of the study at `path`; ends the command if there are no new samples.

    Raises:
        WorkspaceError: the study or one of its extensions runs, or lacks what the new samples need.
        SpecError: the spec does not describe the study, or its samples do not continue the study's.
    """
    from merlin.shards.writing.growing import require_members
    from merlin.workspace.directory import members
    from merlin.workspace.extend import prepare_extension

    study = _open_study(path)
    studies = members(study)
    for member in studies:
        _refuse_running(member)
    _require_settled(study)
    _require_data_sets(studies)
    for instance in study.plan.instances:
        if instance.aggregate is not None:
            require_members(study.data_set_dir(instance), studies)
    made = prepare_extension(
        spec, options, study, only_new=only_new, note=lambda line: print(line, file=sys.stderr)
    )
    if made is None:
        sys.exit(_nothing_to_add(studies, as_json=as_json))
    _announce(studies, made)
    return made


def preview(spec: Spec, options: StudyOptions, path: Path, *, only_new: bool, as_json: bool) -> Plan:
    """The plan of the next extension of the study at `path`; ends the command if there are no new samples.

    Raises:
        SpecError: the spec does not describe the study, or its samples do not continue the study's.
    """
    from merlin.workspace.directory import members
    from merlin.workspace.extend import plan_extension

    study = _open_study(path)
    plan = plan_extension(spec, options, study, only_new=only_new)
    if plan is None:
        sys.exit(_nothing_to_add(members(study), as_json=as_json))
    return plan


def _open_study(path: Path) -> Workspace:
    from merlin.workspace.directory import open_workspace

    study = open_workspace(path)
    if study.plan.extension:
        raise UsageError(f"{path} is an extension itself; give the study: --extend {study.root}")
    return study


def _refuse_running(member: Workspace) -> None:
    from merlin.cli.publishing import refuse_published
    from merlin.status.live import is_live

    if is_live(member):
        raise WorkspaceError(f"{member.path} runs; wait for its end, or stop it, and then extend it")
    refuse_published(member)


def _require_settled(study: Workspace) -> None:
    """What the study did once for all samples is not done again, so it has to be there."""
    from merlin.ledger.replay import replay
    from merlin.plan.growing import relied_on
    from merlin.plan.tasks import Outcome

    outcomes = replay(study.ledger_dir, study.plan).outcomes
    wanted = [study.instance(id) for id in relied_on(study.plan)]
    lacking = [
        i.id
        for i in wanted
        if i.on_failure == "skip"
        and outcomes[i.id].ranges([Outcome.OK, Outcome.SOFT_FAILED]) != [(0, i.num_tasks)]
    ]
    if lacking:
        raise WorkspaceError(
            f"{', '.join(lacking)}, which the new samples need, has not ended ok; "
            f"first: {command_line('restart', study.path)}"
        )


def _require_data_sets(studies: Sequence[Workspace]) -> None:
    """Steps of the extension that work on a data set must find all rows before their own in it."""
    from merlin.ledger.replay import replay
    from merlin.plan.growing import users_of_data_sets
    from merlin.plan.tasks import Outcome

    users = users_of_data_sets(studies[0].plan)
    for study in studies:
        outcomes = replay(study.ledger_dir, study.plan).outcomes
        for manifest, steps in users.items():
            if manifest in outcomes and outcomes[manifest][0] != Outcome.OK:
                raise WorkspaceError(
                    f"{', '.join(steps)} would work on a data set that is not finished; "
                    f"first: {command_line('restart', study.root)}"
                )


def _nothing_to_add(studies: Sequence[Workspace], *, as_json: bool) -> int:
    """Say so; 0, or 1 if one of the studies is not finished."""
    from merlin.status.snapshot import take_snapshot

    num = _num_samples(studies)
    open_ones = [study for study in studies if take_snapshot(study).totals.missing]
    code = 1 if open_ones else 0
    path = studies[0].path
    note = f"nothing to add: {path} has {count(num, 'sample')}, as many as the spec says in all"
    if as_json:
        print_json({"workspace": path, "samples": num, "new_samples": 0, "exit_code": code, "note": note})
    else:
        print(note)
    for study in open_ones:
        print(f"not finished: {command_line('restart', study.path)}", file=sys.stderr)
    return code


def _num_samples(studies: Sequence[Workspace]) -> int:
    return sum(study.plan.samples.num for study in studies if study.plan.samples is not None)


def _announce(studies: Sequence[Workspace], made: Workspace) -> None:
    from merlin.status.snapshot import take_snapshot

    assert made.plan.samples is not None
    new, first = made.plan.samples.num, made.first_sample
    print(
        f"{count(new, 'new sample')}, {first:,} to {first + new - 1:,}, in {made.path}; "
        f"the study has {first + new:,} in all",
        file=sys.stderr,
    )
    if any(take_snapshot(study).totals.missing for study in studies):
        print(
            f"what was there before is not finished; {command_line('restart', made.root)} does that, "
            "and the data sets get the new rows then",
            file=sys.stderr,
        )


# ----------------------------------------------------------------------------------------- restart


def to_restart(opened: Workspace, *, failed: bool) -> list[Workspace]:
    """The study and those of its extensions that a restart has to do with; at least the one that was named."""
    from merlin.status.snapshot import take_snapshot
    from merlin.workspace.directory import shown_together

    studies = shown_together(opened)
    if len(studies) == 1:
        return studies

    def is_open(study: Workspace) -> bool:
        totals = take_snapshot(study).totals
        return bool(totals.missing or (failed and totals.failed + totals.skipped))

    return [study for study in studies if is_open(study)] or [opened]


def restart_all(
    studies: Sequence[Workspace],
    config: Config | None,
    *,
    num_workers: int | None,
    as_json: bool,
    failed: bool,
    steps: Sequence[str],
    max_failures: float | None = None,
) -> int:
    """Run or publish what is missing, study by study, and report; returns the largest exit code."""
    from merlin.cli import execute, publishing

    reports: list[dict[str, Any]] = []
    show: Callable[[dict[str, Any]], None]
    show = execute.show_report if config is None else publishing.show_report
    for study in studies:
        if config is None:
            publishing.refuse_published(study)
            report = execute.run_the_rest(
                study, num_workers=num_workers, failed=failed, steps=steps, max_failures=max_failures
            )
        else:
            command = command_line("run-workers", study.path)
            report = publishing.hand_over(study, config, workers_command=command, failed=failed, steps=steps)
        reports.append(report)
        if not as_json:
            show(report)
        if report["exit_code"] == execute.EXIT_INTERRUPTED:
            break
    code = max(int(report["exit_code"]) for report in reports)
    if as_json:
        print_json(
            {**reports[0], "extensions": reports[1:], "exit_code": code} if reports[1:] else reports[0]
        )
    return code
