"""Repairs a data set wherever it is: in the workspace of its study, in a copy, or without a study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from merlin.api.left_to_run import refuse_changed_samples, refuse_published
from merlin.errors import ShardError, WorkspaceError, command_line
from merlin.execution.repair import Repair, RepairResult, Watch
from merlin.plan.plan import StepInstance
from merlin.shards.format.manifest_file import DataSet, read_manifest
from merlin.shards.proving.origin import find_aggregate
from merlin.shards.proving.repair import lend, plan_repair, take_over, workspace_of_row
from merlin.shards.proving.same_inputs import has_other_inputs
from merlin.shards.proving.verify import VerifyReport
from merlin.shards.recollecting.directory import MARK
from merlin.workspace.directory import Workspace, members, open_workspace
from merlin.workspace.holding import open_finished

Verify = Callable[[Path], VerifyReport]


class Home(Struct, frozen=True):
    """Where a data set belongs."""

    place: Path  # its directory in the workspace, or its own if it has none
    study: Workspace | None
    aggregate: str  # id of its step; "" without a study


def find_home(directory: Path, workspace: Path | None, note: Callable[[str], None]) -> Home:
    """The study that made a data set: the one it lies in, or that of `workspace` if it is a copy.

    Raises WorkspaceError if the data set does not come from `workspace`.
    """
    found = find_aggregate(directory)
    if found is not None and workspace is None:
        return Home(directory, found[0], found[1].id)
    if workspace is None:
        return Home(directory, None, "")
    study = open_workspace(open_finished(workspace, note).root)
    try:
        data = read_manifest(directory)
    except ShardError as e:
        raise WorkspaceError(
            f"{directory} is not known to be a copy of a data set of {study.path}: {e}; copy its manifest again"
        ) from e
    known = {instance.id: instance for instance in study.plan.instances}
    if data.study.get("study_id") != study.plan.study_id or data.aggregate not in known:
        raise WorkspaceError(
            f"{directory} is step '{data.aggregate}' of study {data.study.get('study_id')}, and "
            f"{study.path} is the workspace of study {study.plan.study_id}"
        )
    _require_same_definition(data, known[data.aggregate], study)
    return Home(study.data_set_dir(known[data.aggregate]), study, data.aggregate)


def _require_same_definition(data: DataSet, aggregate: StepInstance, study: Workspace) -> None:
    """Raise WorkspaceError if the data set comes from the study, but is no copy of what the study collects now."""
    again = "make it again: merlin shards collect"
    if MARK in data.study:
        raise WorkspaceError(
            f"{data.directory} was collected again from {study.path}, and is no copy; {again}"
        )
    planned = aggregate.aggregate
    assert planned is not None
    names = [field.name for field in data.fields], data.samples_per_shard
    if names != ([field.name for field in planned.fields], planned.samples_per_shard):
        raise WorkspaceError(
            f"{data.directory} is not as step '{aggregate.id}' of {study.path} collects it now; it may come from an "
            f"earlier revision (merlin history {study.path})"
        )


def how_to_repair(report: VerifyReport) -> str:
    """What to do about a data set that is damaged."""
    words = ("shards", "verify", report.path, "--repair")
    if find_aggregate(report.path) is None:
        if not report.has_manifest:
            return "to repair it: put it back into the workspace of its study, or copy its manifest again"
        data = read_manifest(report.path)
        if plan_repair(data, report.problems).needs_workspace:
            if str(data.study.get("study_id")).startswith("import-"):
                return "to repair it: import it again, as there is no study that could run its samples"
            if MARK in data.study:
                return "to have it intact: collect it again (merlin shards collect) into another directory"
            return f"to repair it: {command_line(*words)} --workspace WORKSPACE, which is that of its study"
    return f"to repair it: {command_line(*words)}"


def repair(
    directory: Path,
    report: VerifyReport,
    *,
    workspace: Path | None,
    verify: Verify,
    watch: Watch,
    note: Callable[[str], None],
    workers: int | None = None,
) -> tuple[VerifyReport, RepairResult]:
    """Repair one data set after a full check; returns the last check, and what was done.

    `verify` checks it again, `watch` shows the samples that run again, `note` gets what a person should know.

    Raises:
        WorkspaceError: the study runs just now, its samples have changed, or its workspace is not known.
        ShardError, ExecutionError, LedgerError: it could not be finished; run the command again to go on.
    """
    home = find_home(directory, workspace, note)
    studies = [] if home.study is None else members(home.study)
    for member in studies:
        refuse_published(member, note)
    if studies:
        _refuse_other_samples(directory, report, {member.member: member for member in studies})
    is_copy = home.place.resolve() != directory.resolve()
    if is_copy:
        lend(directory, home.place)
    work = Repair(
        home.place,
        home.study,
        home.aggregate,
        verify=lambda: verify(home.place),
        watch=watch,
        workers=workers,
    )
    first = verify(home.place) if is_copy else report
    last = work.run(first)
    if is_copy and last.ok:
        work.done.rebuilt |= set(take_over(home.place, directory))
        last = verify(directory)
    return last, work.done


def _refuse_other_samples(directory: Path, report: VerifyReport, studies: Mapping[str, Workspace]) -> None:
    """Raise WorkspaceError, before anything is reset, if rows would get other inputs than they were made of."""
    if not report.has_manifest:
        refuse_changed_samples(studies.values())
        return
    data = read_manifest(directory)
    plan = plan_repair(data, report.problems)
    for entry in data.shards:
        has_lost = bool(((plan.rows >= entry.lo) & (plan.rows < entry.hi)).any())
        study = studies.get(workspace_of_row(data, entry.lo))
        if study is None or study.plan.samples is None or not (has_lost or entry.shard in plan.repack):
            continue
        refuse_changed_samples([study])
        if has_other_inputs(data, entry, study):
            raise WorkspaceError(
                f"{study.path / study.plan.samples.file} has other values than {entry.file} was made of; put them back"
            )
