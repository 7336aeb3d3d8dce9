"""The pages of studies that have ended while somebody measured them: their last numbers, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from merlin.views.background import Background
from merlin.views.study_page import StudyPage, StudyView

MOST = 10  # so many studies are kept: those that ended last
EVERY_S = 2.0

End = tuple[str, str, int]  # workspace, id of the study, and the number of this end among all ends


def look(path: Path, id: str) -> StudyPage:
    return StudyView(path, id=id).look()


class EndedPages:
    """Reads the page of a study once after each of its ends, in a thread. One thread calls this."""

    def __init__(self, look: Callable[[Path, str], StudyPage] = look) -> None:
        self._look = look
        self._open: dict[str, StudyPage] = {}  # by workspace, as they were seen last
        self._ends: dict[str, End] = {}  # by workspace, the newest end last
        self._num_ends = 0
        self._pages: dict[End, StudyPage] = {}
        self._background = Background(self._read, every_s=EVERY_S, times_as_long=20.0)

    def latest(self, pages: Iterable[StudyPage]) -> list[StudyPage]:
        """The pages of studies that were among `pages` in an earlier call, and are not any more."""
        now = {page.workspace: page for page in pages}
        for name, page in self._open.items():
            if name not in now:
                self._num_ends += 1
                self._ends[name] = name, page.id, self._num_ends
        self._open = now
        self._ends = dict([(name, end) for name, end in self._ends.items() if name not in now][-MOST:])
        if not self._ends:
            return []
        found = self._background.latest() or {}
        return [found[end] for end in self._ends.values() if end in found]

    def _read(self) -> dict[End, StudyPage]:
        before, wanted = self._pages, tuple(self._ends.values())
        self._pages = {end: before.get(end) or self._look(Path(end[0]), end[1]) for end in wanted}
        return self._pages
