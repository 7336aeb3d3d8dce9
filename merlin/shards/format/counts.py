"""What became of the samples of a data set, by outcome. Light to import: `merlin status` shows it."""

from __future__ import annotations

import stat
from functools import lru_cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import astuple

from merlin.base.records import as_kind, parsed

MANIFEST_NAME = "manifest.json"
OUTCOMES = ("ok", "failed", "filtered", "skipped", "missing")


class Counts(Struct, frozen=True):
    """planned = ok + failed + filtered + skipped + missing.

    `ok` are the rows in the data set: tasks that ended ok, less those that the filters rejected.
    """

    planned: int
    ok: int
    failed: int
    skipped: int
    missing: int
    filtered: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @property
    def reconciled(self) -> bool:
        return self.planned == self.ok + self.failed + self.filtered + self.skipped + self.missing

    def __str__(self) -> str:
        parts = " + ".join(f"{name} {getattr(self, name):,}" for name in OUTCOMES)
        return f"planned {self.planned:,} {'=' if self.reconciled else '≠'} {parts}"


def counts_of(directory: Path) -> Counts | None:
    """Return the counts in the manifest of a data set, which is not proven here; None if there is no readable one."""
    path = directory / MANIFEST_NAME
    try:
        found = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):  # reading a pipe may never end
        return None
    return _counts_in(path, (found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=64)
def _counts_in(path: Path, stamp: tuple[int, int, int]) -> Counts | None:
    """The counts in a manifest, kept for its next reader until the file is replaced.

    A manifest may be long and is read again and again; nobody changes it in place.
    """
    try:
        return as_kind(parsed(path.read_bytes())["counts"], Counts)
    except (OSError, ValueError, KeyError, TypeError):
        return None
