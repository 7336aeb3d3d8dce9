"""What metrics are made of: pages of studies, and what else is known about them, at one moment."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct, field

from merlin.dashboard.listed_study import ListedStudy
from merlin.errors import MerlinError
from merlin.status.failures import group_failures
from merlin.views.at_work import QueueLine, WorkerLine
from merlin.views.background import Background
from merlin.views.study_page import StudyPage
from merlin.views.worker_jobs import JobLine
from merlin.workspace.directory import members, open_workspace

DETAILS_S = 15.0  # between two looks at what takes time

Failures = Mapping[tuple[str, str], int]  # step, kind of end -> tasks
_Mark = tuple[tuple[str, int, float | None], ...]


class Details(Struct, frozen=True, kw_only=True):
    """What is read about a study beyond its page."""

    failures: Failures = field(default_factory=dict)
    free_bytes: int | None = None  # of the file system that it writes to; None: not known


class Measured(Struct, frozen=True, kw_only=True):
    """Everything that metrics show."""

    pages: Sequence[StudyPage]  # of the studies that are not over, or that were named
    lines: Sequence[ListedStudy]  # of all studies, the newest first
    workers: Sequence[WorkerLine]
    queues: Sequence[QueueLine]
    jobs: Sequence[JobLine]  # in which workers live
    details: Mapping[str, Details]  # by workspace
    seconds: float  # the time that it took to find all this out


class DetailsReader:
    """Reads the details of studies; failures are counted again only if their step has recorded something since."""

    def __init__(self) -> None:
        self._pages: tuple[StudyPage, ...] = ()
        self._failures: dict[str, tuple[_Mark, Failures]] = {}  # by workspace
        self._background = Background(self._read, every_s=DETAILS_S, times_as_long=20.0)

    def latest(self, pages: Iterable[StudyPage]) -> Mapping[str, Details]:
        """The last details of these studies; new ones are read in a thread meanwhile."""
        self._pages = tuple(pages)
        return self._background.latest() or {}

    def read(self, pages: Iterable[StudyPage]) -> Mapping[str, Details]:
        """The details of these studies, read now."""
        self._pages = tuple(pages)
        return self._read()

    def _read(self) -> Mapping[str, Details]:
        pages = self._pages
        known = {page.workspace: self._failures_of(page) for page in pages}
        self._failures = {page.workspace: (_mark(page), known[page.workspace]) for page in pages}
        return {
            page.workspace: Details(failures=known[page.workspace], free_bytes=_free_bytes(page.workspace))
            for page in pages
        }

    def _failures_of(self, page: StudyPage) -> Failures:
        mark, found = self._failures.get(page.workspace, ((), {}))
        if mark == _mark(page):
            return found
        counts: Counter[tuple[str, str]] = Counter()
        with suppress(MerlinError, OSError):  # damage has a metric of its own
            for member in members(open_workspace(page.workspace)):
                for group in group_failures(member, with_ranges=False):
                    counts[group.step, group.exit_class] += group.count
        return counts


def _mark(page: StudyPage) -> _Mark:
    """What changes when failures come or go, or tasks fail again."""
    return tuple((step.step, step.failed, step.ended) for step in page.steps if step.failed)


def _free_bytes(workspace: str) -> int | None:
    try:
        found = os.statvfs(workspace)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def merged_queues(several: Iterable[QueueLine]) -> list[QueueLine]:
    """Each queue once, by the line with the oldest waiting chunk; studies may share queues."""
    best: dict[str, QueueLine] = {}
    for line in several:
        have = best.get(line.name)
        if have is None or (line.oldest_s or -1.0) > (have.oldest_s or -1.0):
            best[line.name] = line
    return list(best.values())
