"""From a data set to the study that made it, and what that study knows about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from merlin.base.files import absolute_path
from merlin.errors import WorkspaceError
from merlin.plan.plan import StepInstance, StepKind
from merlin.plan.tasks import Outcome

if TYPE_CHECKING:
    from merlin.workspace.directory import Workspace


def find_aggregate(directory: Path) -> tuple[Workspace, StepInstance] | None:
    """The workspace above a data set's directory, and the aggregate that it belongs to; None if there is none."""
    from merlin.workspace.directory import INFO_DIR, PLAN_NAME, open_workspace

    directory = absolute_path(directory)
    for parent in directory.parents:
        if (parent / INFO_DIR / PLAN_NAME).is_file():
            try:
                workspace = open_workspace(parent)
            except WorkspaceError:
                return None
            for instance in workspace.plan.instances:
                if instance.kind is StepKind.AGGREGATE and workspace.data_set_dir(instance) == directory:
                    return workspace, instance
            return None
    return None


def manifest_instance(workspace: Workspace, aggregate: StepInstance) -> StepInstance:
    """The step instance that writes the manifest of an aggregate. Raises WorkspaceError if the plan has none."""
    for instance in workspace.plan.instances:
        if instance.kind is StepKind.MANIFEST and instance.finishes == aggregate.id:
            return instance
    raise WorkspaceError(f"the plan of {workspace.path} writes no manifest for '{aggregate.id}'")


def has_manifest_outcome(workspace: Workspace, aggregate: StepInstance) -> bool:
    """Whether the ledger says that the data set of an aggregate was finished."""
    from merlin.ledger.replay import replay

    manifest = manifest_instance(workspace, aggregate)
    return replay(workspace.ledger_dir, workspace.plan).outcomes[manifest.id][0] == Outcome.OK
