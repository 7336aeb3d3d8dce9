"""The next extension of a study: whether it may begin, and what it will run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from merlin.api.left_to_run import refuse_published, refuse_running
from merlin.errors import WorkspaceError, command_line
from merlin.ledger.replay import replay
from merlin.plan.growing import relied_on, users_of_data_sets
from merlin.plan.plan import Plan
from merlin.plan.tasks import Outcome
from merlin.workspace.directory import Workspace, members

if TYPE_CHECKING:
    from merlin.spec.load import Spec
    from merlin.workspace.options import StudyOptions


def next_extension(
    spec: Spec, options: StudyOptions, study: Workspace, *, only_new: bool, note: Callable[[str], None]
) -> Workspace | None:
    """Prepare the next extension of a study; None if there are no new samples.

    Raises:
        WorkspaceError: the study or one of its extensions runs, or lacks what the new samples need.
        SpecError: the spec does not describe the study, or its samples do not continue the study's.
    """
    from merlin.shards.writing.growing import require_members
    from merlin.workspace.extend import prepare_extension

    studies = members(study)
    refuse_running(studies)
    for member in studies:
        refuse_published(member, note)
    _require_settled(study)
    _require_data_sets(studies)
    for instance in study.plan.instances:
        if instance.aggregate is not None:
            require_members(study.data_set_dir(instance), studies)
    return prepare_extension(spec, options, study, only_new=only_new, note=note)


def waits_for(workspace: Workspace) -> str:
    """What an extension needs of the studies before it that has not ended ok, in words; "" if it may run.

    All of it had ended when the extension began; an edited spec, or a restart of failures, may run it again.
    """
    if not workspace.plan.extension:
        return ""
    studies = members(workspace)
    before = [study for study in studies if study.plan.extension < workspace.plan.extension]
    if lacking := _unsettled(studies[0]):
        return ", ".join(lacking)
    unfinished = _unfinished_data_sets(workspace.plan, before)
    names = [workspace.instance(id).finishes for id in unfinished]
    return ", ".join(f"the data set {name}" for name in names)


def _require_settled(study: Workspace) -> None:
    """Raise WorkspaceError unless all that the study did once for all samples has ended: it is not done again."""
    if lacking := _unsettled(study):
        first = command_line("restart", study.path)
        raise WorkspaceError(
            f"{', '.join(lacking)}, which the new samples need, has not ended ok; first: {first}"
        )


def _unsettled(study: Workspace) -> list[str]:
    """The step instances that extensions rely on, and that have not ended as extensions need it."""
    outcomes = replay(study.ledger_dir, study.plan).outcomes
    wanted = [study.instance(id) for id in relied_on(study.plan)]
    return [
        i.id
        for i in wanted
        if i.on_failure == "skip"
        and outcomes[i.id].ranges([Outcome.OK, Outcome.SOFT_FAILED]) != [(0, i.num_tasks)]
    ]


def _require_data_sets(studies: Sequence[Workspace]) -> None:
    """Raise WorkspaceError if steps of the extension work on a data set that lacks some of the earlier rows."""
    for steps in _unfinished_data_sets(studies[0].plan, studies).values():
        first = command_line("restart", studies[0].path)
        raise WorkspaceError(
            f"{', '.join(steps)} would work on a data set that is not finished; first: {first}"
        )


def _unfinished_data_sets(plan: Plan, studies: Sequence[Workspace]) -> dict[str, tuple[str, ...]]:
    """The data sets that steps of the plan work on and that these studies have not finished, each with the steps."""
    users = users_of_data_sets(plan)
    found: dict[str, tuple[str, ...]] = {}
    for study in studies if users else ():
        outcomes = replay(study.ledger_dir, study.plan).outcomes
        for manifest, steps in users.items():
            if manifest in outcomes and outcomes[manifest][0] != Outcome.OK:
                found[manifest] = steps
    return found
