"""The samples that a study was planned with, even if the file that they came from has changed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np

from merlin.errors import SamplesError, WorkspaceError
from merlin.plan.plan import Plan
from merlin.workspace.directory import Workspace
from merlin.workspace.new_samples import write_rows
from merlin.workspace.samples import open_samples
from merlin.workspace.samples_table import Columns, JoinedRows, SamplesTable
from merlin.workspace.text_samples import DIALECTS

_STEM = "samples_used"
_SUFFIXES = (*DIALECTS, ".npy")
MOST_VALUES = 1 << 25  # of a copy; a file with more is not copied


class AsInText(JoinedRows):
    """Rows whose text has no blanks around numbers, as it is read from a .csv file; earlier copies of one have them."""

    def _read(self, lo: int, hi: int) -> Columns:
        columns = super()._read(lo, hi)
        for column in (each for each in columns.values() if each.dtype.kind == "U"):
            bare = np.char.strip(column, " ")
            for row in np.flatnonzero(bare != column).tolist():
                with suppress(ValueError):
                    float(bare[row])
                    column[row] = bare[row]
        return columns


def used_name(table: SamplesTable) -> str:
    """The name of a file for rows of a table: text stays text, so that 12 does not become 12.0."""
    suffix = table.path.suffix.lower()
    return f"{_STEM}{suffix if suffix in DIALECTS else '.npy'}"


def keep_samples(info: Path, plan: Plan, table: SamplesTable | None) -> None:
    """Copy samples that lie outside of the workspace, where somebody may edit them. Raises OSError."""
    is_outside = plan.samples is not None and Path(plan.samples.file).is_absolute()
    if table is not None and is_outside and table.num * len(table.labels) <= MOST_VALUES:
        write_rows(info / used_name(table), table, 0)


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
        copies = (workspace.info / f"{_STEM}{suffix}" for suffix in _SUFFIXES)
        copy = next((path for path in copies if path.is_file()), None)
        if info is None or copy is None:
            raise
        table = open_samples(copy, info.labels)
        if table.num != info.num:
            raise
        return table
