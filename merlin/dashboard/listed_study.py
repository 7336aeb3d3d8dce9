"""A study as the dashboard's list shows it: from its page, from its files alone, or from what was noted before."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from merlin.errors import LedgerError, MerlinError
from merlin.ledger.segments import own_segment_paths
from merlin.plan.outcome_counts import summed
from merlin.status.live import is_held
from merlin.status.snapshot import is_published, local_activity, read_facts, snapshot_of
from merlin.views.live import JOBS_DIR
from merlin.views.study_line import SettledLines, StudyLine, stamp_of
from merlin.views.study_page import StudyPage
from merlin.workspace.directory import (
    EXTENSIONS_DIR,
    INFO_DIR,
    begin_shown,
    ledgers_in,
    open_workspace,
    study_name_of,
)

READING = "reading"  # the state of a study that was not looked at yet


class ListedStudy(StudyLine, frozen=True, kw_only=True):
    """A study in the list, with the tasks of its extensions; `state` may also be `reading`."""

    id: str  # what it is called in addresses
    size_bytes: int | None = None  # of the ledger; None: not known


def unread(path: Path, id: str) -> ListedStudy:
    """A study of which only the directory is known."""
    return ListedStudy(
        id=id,
        name=study_name_of(path),
        when=begin_shown(path),
        workspace=str(path),
        state=READING,
    )


def of_page(path: Path, id: str, page: StudyPage) -> ListedStudy:
    """A study as it was seen."""
    is_running = page.state == "running"
    return ListedStudy(
        id=id,
        name=page.name,
        when=begin_shown(path),
        workspace=str(path),
        state=page.state,
        state_reason=page.state_reason,
        **summed([page.totals]),
        rate=page.rate if is_running else None,
        eta=page.eta if is_running else None,
        size_bytes=page.ledger_bytes,
        problem=page.state_reason if page.state == "unreadable" else "",
    )


class EndedStudies:
    """The lines of studies that nobody works on: from the notes of `merlin list`, or from their ledgers."""

    def __init__(self) -> None:
        self._notes: SettledLines | None = None  # read when they are needed

    def line(self, path: Path, id: str) -> ListedStudy | None:
        """The line of a study; None if somebody may work on it, or if it has extensions or jobs of steps."""
        # the notes leave extensions out, and batch jobs of steps may live on
        if any((path / name).is_dir() for name in (EXTENSIONS_DIR, f"{INFO_DIR}/{JOBS_DIR}")) or is_held(
            path
        ):
            return None
        if self._notes is None:
            self._notes = SettledLines(os.environ)
        stamp = stamp_of(path)
        line = self._notes.get(path, stamp)
        if line is None:
            if (line := _line_of_files(path)) is None:
                return None
            self._notes.add(path, stamp, line)
        values = {name: getattr(line, name) for name in StudyLine.__struct_fields__}
        return ListedStudy(**values, id=id, size_bytes=_ledger_bytes(path))

    def save(self) -> None:
        """Note what was found, for the next time."""
        if self._notes is not None:
            self._notes.save()


def _line_of_files(path: Path) -> StudyLine | None:
    """What the files of a study say; None if a run holds it, if workers may have it, or if it is unreadable."""
    try:
        workspace, now = open_workspace(path), time.time()
        facts = read_facts(workspace)
        activity = local_activity(workspace, facts, now)
        if activity.state != "none" or is_published(facts):
            return None
        snapshot = snapshot_of(workspace, facts, activity, now)
    except MerlinError:
        return None
    return StudyLine(
        name=snapshot.name,
        workspace=str(path),
        when=begin_shown(path),
        state=snapshot.state,
        **summed([snapshot.totals]),
        state_reason=snapshot.state_reason,
    )


def _ledger_bytes(path: Path) -> int | None:
    with suppress(OSError, LedgerError):
        ledgers = ledgers_in(path / INFO_DIR)
        return sum(segment.stat().st_size for ledger in ledgers for segment in own_segment_paths(ledger))
    return None
