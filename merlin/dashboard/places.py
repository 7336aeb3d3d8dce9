"""Where studies are looked for, and which of them have to be read again: not those that have ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from merlin.dashboard.listed_study import (
    EndedStudies,
    ListedStudy,
    of_page,
    unread,
)
from merlin.views.study_page import StudyPage, StudyView
from merlin.workspace.directory import INFO_DIR, begin_of, has_given_name, is_workspace

SETTLED = ("new", "finished", "failed", "stopped")  # states that change only by a new record in the ledger
JUST_NOW_S = 2.0  # a directory that changed within this time may change again without a new time stamp
PERIOD_S = 2.0  # between two looks at a study that is not settled
LONGEST_S = 30.0  # the same, of a study in which nothing happens
TIMES_AS_LONG = 20.0  # the next look at a study comes after so many times the duration of the last
REST_TIMES = 4.0  # the rest after all studies were read, in durations of that reading
LONGEST_REST_S = 10.0
MOST_VIEWS = 32  # so many views are kept, so that the next look reads only what is new
SAVE_S = 10.0  # between two times that notes are written while many studies are read


class _Known(Struct, frozen=True, kw_only=True):
    """What was seen of a study, and when it has to be looked at again."""

    line: ListedStudy
    mark: tuple[int, ...]  # the mark of its ledger when it was last looked at
    is_settled: bool = True
    wait_s: float = PERIOD_S  # before the next look, if it is not settled
    again: float = 0.0  # monotonic time of that look
    page: StudyPage | None = None  # of a study that is not settled
    view: StudyView | None = None

    def is_due(self, mark: tuple[int, ...]) -> bool:
        return self.mark != mark if self.is_settled else time.monotonic() >= self.again


class Place:
    """The workspaces in one directory, or some that were named.

    `find` and `read` may be used at the same time, each by one thread.
    """

    def __init__(self, root: Path | None = None, named: Sequence[Path] = ()) -> None:
        self.root, self._named = root, tuple(named)
        self.problem = ""  # why the directory cannot be read
        self._names: list[str] = []
        self._mark = -1  # of the directory, when its names were read
        self._known: dict[Path, _Known] = {}
        self._rests_until = 0.0

    def find(self) -> list[Path]:
        """The workspaces that are there now; the directory is read only if it changed."""
        found = [path for path in self._named if is_workspace(path)]
        if self.root is not None:
            found += [self.root / name for name in self._find_names(self.root)]
        return found

    def _find_names(self, root: Path) -> list[str]:
        try:
            changed = root.stat()
            if changed.st_mtime_ns == self._mark:
                return self._names
            entries = [entry.name for entry in os.scandir(root)]
        except OSError as error:
            self.problem, self._names, self._mark = f"{root}: {error.strerror}", [], -1
            return []
        self.problem = ""
        before = set(self._names)
        self._names = [name for name in entries if name in before or is_workspace(root / name)]
        # read the directory again if a study in it is still being prepared, or if it has changed just now
        is_prepared = any(has_given_name(root / name) for name in set(entries).difference(self._names))
        is_sure = not is_prepared and time.time() - changed.st_mtime > JUST_NOW_S
        self._mark = changed.st_mtime_ns if is_sure else -1
        return self._names

    def read(self, ids: Mapping[Path, str], known_page: Callable[[Path], StudyPage | None]) -> None:
        """Look at those studies that may have changed, the newest first.

        `known_page` returns the page of a study that somebody follows, which need not be read again.
        """
        began = saved = time.monotonic()
        if began < self._rests_until and all(path in self._known for path in ids):
            return
        for path in set(self._known).difference(ids):
            del self._known[path]
        ended = EndedStudies()
        marks = {path: _ledger_mark(path) for path in ids}
        due = [path for path in ids if (known := self._known.get(path)) is None or known.is_due(marks[path])]
        for path in sorted(due, key=begin_of, reverse=True):
            self._known[path] = self._look(path, ids[path], marks[path], known_page(path), ended)
            if time.monotonic() - saved > SAVE_S:
                ended.save()
                saved = time.monotonic()
        ended.save()
        took = time.monotonic() - began
        self._rests_until = began + took + min(LONGEST_REST_S, REST_TIMES * took)

    def _look(
        self, path: Path, id: str, mark: tuple[int, ...], page: StudyPage | None, ended: EndedStudies
    ) -> _Known:
        began, before = time.monotonic(), self._known.get(path)
        view = before.view if before is not None and page is None else None
        if page is None:
            may_have_ended = (before is None or before.is_settled) and not _is_recent(mark)
            if may_have_ended and (line := ended.line(path, id)) is not None:
                return _Known(line=line, mark=mark)
            view = view or StudyView(path, id=id)
            page = view.look()
        now, line = time.monotonic(), of_page(path, id, page)
        is_settled = page.state in SETTLED and not _is_recent(mark)
        is_quiet = before is not None and before.line == line and before.mark == mark
        wait_s = min(LONGEST_S, 2 * before.wait_s) if before is not None and is_quiet else PERIOD_S
        keeps_view = not is_settled and page.state != "unreadable" and self._num_views() < MOST_VIEWS
        return _Known(
            line=line,
            mark=mark,
            is_settled=is_settled,
            wait_s=wait_s,
            again=now + max(wait_s, TIMES_AS_LONG * (now - began)),
            page=None if is_settled else page,
            view=view if keeps_view else None,
        )

    def _num_views(self) -> int:
        return sum(known.view is not None for known in self._known.values())

    def lines(self, ids: Mapping[Path, str]) -> list[ListedStudy]:
        """A line for each of these studies; any thread may ask."""
        known = dict(self._known)
        return [known[path].line if path in known else unread(path, id) for path, id in ids.items()]

    def pages(self) -> list[StudyPage]:
        """The pages of the studies that are not settled; any thread may ask."""
        return [known.page for known in list(self._known.values()) if known.page is not None]


def _ledger_mark(path: Path) -> tuple[int, ...]:
    """A mark that changes when a run begins or a segment is added: times of the ledger's directory and the lock."""
    times = []
    for name in ("ledger", "lock"):
        with suppress(OSError):
            times.append(os.stat(f"{path}/{INFO_DIR}/{name}").st_mtime_ns)  # noqa: PTH116 - of thousands of studies
    return tuple(times)


def _is_recent(mark: tuple[int, ...]) -> bool:
    return any(time.time_ns() - changed < JUST_NOW_S * 1e9 for changed in mark)
