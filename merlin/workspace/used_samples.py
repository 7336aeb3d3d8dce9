"""The samples that a study was planned with, even if the file that they came from has changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from merlin.errors import MerlinError, SamplesError, WorkspaceError, command_line
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
        info, copy = workspace.plan.samples, _copy_of_samples(workspace)
        if info is None or copy is None:
            raise
        table = open_samples(copy, info.labels)
        if table.num != info.num:
            raise
        return table


def _copy_of_samples(workspace: Workspace) -> Path | None:
    copies = (workspace.info / f"{_STEM}{suffix}" for suffix in _SUFFIXES)
    return next((path for path in copies if path.is_file()), None)


def how_to_have_again(workspace: Workspace) -> Iterator[str]:
    """What brings the samples back that a workspace was planned with, in words, if something is known to do so."""
    info = workspace.plan.samples
    if info is None or workspace.plan.revision or workspace.plan.extension:
        return
    spec = next(workspace.info.glob("*.expanded.yaml"), None)
    if copy := _copy_of_samples(workspace):
        yield f"a copy of them is {copy}"
    elif (workspace.info / "cmd.sh").is_file():
        yield f"the command that made them is {workspace.info / 'cmd.sh'}"
    elif spec is not None and _has_method(spec):
        yield f"to make them again: {command_line('samples', spec, '--out', workspace.path / info.file)}"


def _has_method(spec: Path) -> bool:
    from merlin.spec.load import load_spec  # with the blocks of specs, for this rare case alone

    with suppress(MerlinError):
        samples = load_spec(spec, allow_undefined=True).document.merlin.samples
        return samples is not None and samples.generate is not None and samples.generate.method is not None
    return False
