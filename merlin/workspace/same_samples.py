"""Checks that a samples file of the user's still has the rows that a study was planned with."""

from __future__ import annotations

import glob as globbing
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from merlin.errors import WorkspaceError
from merlin.plan.plan import SamplesInfo

if TYPE_CHECKING:
    from merlin.workspace.samples_table import SamplesTable

_BLOCK_ROWS = 1 << 16


def digest(table: SamplesTable, num: int) -> str:
    """SHA-256 of rows [0, num) as the file has them."""
    state = hashlib.sha256()
    for lo in range(0, num, _BLOCK_ROWS):
        state.update(table.stored(lo, min(lo + _BLOCK_ROWS, num)))
    return state.hexdigest()


def sample_files(path: str | os.PathLike[str]) -> list[str]:
    """The file itself, else all that it matches if it is a pattern, sorted."""
    return [str(path)] if Path(path).exists() else sorted(globbing.glob(str(path)))  # noqa: PTH207 - may be absolute


def stamp(path: str | os.PathLike[str]) -> str:
    """Size and time of the last change of a file, or of all that a pattern matches; "" if there is none."""
    found = [Path(name).stat() for name in sample_files(path)]
    stamps = ",".join(f"{file.st_size}:{file.st_mtime_ns}" for file in found)
    return stamps if len(found) < 2 else hashlib.sha256(stamps.encode()).hexdigest()


class SameSamples:
    """Checks the rows if the file's stamp is not the known one, and then remembers the new stamp."""

    def __init__(self, path: Path, info: SamplesInfo) -> None:
        self._path, self._info = path, info
        self._known = info.stamp

    def require(self, table: SamplesTable) -> None:
        """Raises WorkspaceError if the first rows of the table are not those of the plan."""
        now = stamp(self._path)
        if now and now == self._known:
            return
        if digest(table, self._info.num) != self._info.digest:
            raise WorkspaceError(
                f"{self._path} has changed: its first {self._info.num:,} rows are not those that the study was planned "
                "with; put them back, or run the spec again as a new study"
            )
        self._known = now
