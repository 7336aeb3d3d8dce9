"""A study as a list shows it, and the lines of studies that have ended, kept.

What is kept is a hint and never the truth: a line counts only as long as the plan and the segments of the ledger are
the same files with the same sizes and times. So a list of thousands of studies need not read all their ledgers again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field

from merlin.base.records import as_kind, parsed_with_names, to_plain
from merlin.config.places import merlin_home
from merlin.config.private_file import write_private
from merlin.errors import ConfigError, LedgerError
from merlin.ledger.segments import own_segment_paths
from merlin.plan.outcome_counts import OutcomeCounts
from merlin.status.eta import Eta
from merlin.workspace.directory import INFO_DIR, PLAN_NAME, extension_paths, ledgers_in

FORMAT = 1
MAX_LINES = 20_000
FILE = "study_lines.json"


class StudyLine(OutcomeCounts, frozen=True, kw_only=True):
    """A study with its extensions, as a list shows it."""

    name: str
    workspace: str
    when: str  # "2026-01-02 03:04:05", from the name of the workspace
    state: str  # of its snapshot; "unreadable" if there can be none, and `problem` says why
    rate: float | None = None  # tasks per second that end, of a study that runs
    eta: Eta | None = None
    state_reason: str = ""  # why it is stalled, or why nobody knows
    problem: str = ""
    is_dry: bool = False  # a dry run made it, and nothing has run in it


class _Kept(Struct, frozen=True):
    stamp: str
    line: StudyLine


class _File(Struct, frozen=True):
    format: int
    lines: dict[str, _Kept] = field(default_factory=dict)  # by workspace, the last one that was noted first


class SettledLines:
    """The lines of studies that have ended; `save` what was added."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._path = merlin_home(env) / FILE
        self._lines = _read(self._path)
        self._added: dict[str, _Kept] = {}

    def get(self, workspace: Path, stamp: str) -> StudyLine | None:
        """The line of a workspace whose files have this stamp; None if it is not known."""
        kept = self._lines.get(str(workspace))
        return kept.line if kept is not None and stamp and kept.stamp == stamp else None

    def add(self, workspace: Path, stamp: str, line: StudyLine) -> None:
        """Note the line of a study that has ended; `stamp` was taken before it was read."""
        if stamp:
            self._added[str(workspace)] = _Kept(stamp, line)

    def save(self) -> None:
        """Write what was added; nothing is written where the home cannot be."""
        if not self._added:
            return
        lines = dict(list({**self._added, **self._lines, **self._added}.items())[:MAX_LINES])
        text = json.dumps(to_plain(_File(FORMAT, lines)), separators=(",", ":")) + "\n"
        with suppress(OSError, ConfigError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(self._path, text)


def stamp_of(workspace: Path) -> str:
    """A stamp that changes when anything happens to a study or its extensions; "" if it is not known."""
    try:
        infos = [each / INFO_DIR for each in (workspace, *extension_paths(workspace))]
        ledgers = [ledger for info in infos for ledger in ledgers_in(info)]
        files = [info / PLAN_NAME for info in infos]
        files += [path for ledger in ledgers for path in own_segment_paths(ledger)]
        marks = [_mark(path) for path in files]
    except (OSError, LedgerError):
        return ""
    return hashlib.blake2b("|".join(marks).encode(), digest_size=12).hexdigest()


def _mark(path: Path) -> str:
    found = os.stat(path)  # noqa: PTH116 - a third of the time of Path.stat, for thousands of files
    return f"{path.name}:{found.st_size}:{found.st_mtime_ns}:{found.st_ino}"


def _read(path: Path) -> dict[str, _Kept]:
    try:
        found = as_kind(parsed_with_names(path.read_bytes()), _File)
    except (OSError, ValueError):
        return {}
    return found.lines if found.format == FORMAT else {}
