"""The samples that a study was planned with, even if the file that they came from has changed."""

from __future__ import annotations

from pathlib import Path

from merlin.errors import SamplesError, WorkspaceError
from merlin.plan.plan import Plan
from merlin.workspace.directory import Workspace
from merlin.workspace.new_samples import write_rows
from merlin.workspace.samples import open_samples
from merlin.workspace.samples_table import SamplesTable

NAME = "samples_used.npy"
MOST_VALUES = 1 << 25  # of a copy; a file with more is not copied


def keep_samples(info: Path, plan: Plan, table: SamplesTable | None) -> None:
    """Copy samples that lie outside of the workspace, where somebody may edit them. Raises OSError."""
    is_outside = plan.samples is not None and Path(plan.samples.file).is_absolute()
    if table is not None and is_outside and table.num * len(table.labels) <= MOST_VALUES:
        write_rows(info / NAME, table, 0)


def has_its_samples(workspace: Workspace) -> bool:
    """Whether the file that the plan names is there, and has the samples that the workspace was planned with."""
    try:
        workspace.samples()
    except (WorkspaceError, SamplesError):
        return False
    return True


def samples_of_plan(workspace: Workspace) -> SamplesTable:
    """The samples that the workspace was planned with.

    Raises WorkspaceError or SamplesError if they are no longer available.
    """
    try:
        return workspace.samples()
    except (WorkspaceError, SamplesError):
        info = workspace.plan.samples
        copy = workspace.info / NAME
        if info is None or not copy.is_file():
            raise
        table = open_samples(copy, info.labels)
        if table.num != info.num:
            raise
        return table
