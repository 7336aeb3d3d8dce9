"""Checks that a samples file still has the rows that a study was planned with."""

from __future__ import annotations

import glob as globbing
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from merlin.errors import WorkspaceError
from merlin.plan.plan import SamplesInfo

if TYPE_CHECKING:
    from merlin.workspace.samples_table import SamplesTable

_BLAKE3 = "blake3:"


class RowsDigest:
    """The digest of rows that come in order; `like`: one of an earlier plan, which has SHA-256 without a name."""

    def __init__(self, like: str = "") -> None:
        self._name = "" if like and not like.startswith(_BLAKE3) else _BLAKE3
        self._state: Any = hashlib.sha256()
        if self._name:
            from blake3 import blake3  # only needed if the samples are new, or may have changed

            self._state = blake3()

    def update(self, data: bytes | memoryview) -> None:
        self._state.update(data)

    def __str__(self) -> str:
        return f"{self._name}{self._state.hexdigest()}"


def digest(table: SamplesTable, num: int, like: str = "") -> str:
    """The digest of rows [0, num) as the file has them; `like` as for `RowsDigest`."""
    rows = RowsDigest(like)
    for lo, hi in table.blocks(num):
        rows.update(table.stored(lo, hi))
    return str(rows)


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
        if digest(table, self._info.num, self._info.digest) != self._info.digest:
            raise WorkspaceError(
                f"{self._path} has changed: its first {self._info.num:,} rows are not those that the study was planned "
                "with; put them back, or run the spec again as a new study"
            )
        self._known = now
