"""What became of the samples of a data set, by outcome. Light to import: `merlin status` shows it."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from pathlib import Path

MANIFEST_NAME = "manifest.json"
OUTCOMES = ("ok", "failed", "filtered", "skipped", "missing")


@dataclass(frozen=True, slots=True)
class Counts:
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
    try:
        return Counts(**json.loads((directory / MANIFEST_NAME).read_bytes())["counts"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
