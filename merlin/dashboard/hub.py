"""What the dashboard shows: the list of all studies, those that somebody looks at, and the servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from merlin.dashboard.answers import to_json
from merlin.dashboard.followed import FollowedStudy
from merlin.dashboard.kept_answers import KeptAnswers, made
from merlin.dashboard.lanes import Lane
from merlin.dashboard.listing import Listing
from merlin.errors import WorkspaceError
from merlin.views.at_work import workers_page
from merlin.views.study_page import StudyPage

LIMIT_S = 30.0  # the wait for an answer of the servers
KNOWN_S = 2.0  # the list uses the page of a followed study for so long
MOST_RESTING = 16  # studies that nobody looks at any more, and whose views are kept


class Hub:
    """What the dashboard shows. It belongs to the event loop; threads of each place and study do slow work."""

    def __init__(
        self,
        roots: Sequence[Path],
        named: Sequence[Path] = (),
        follow: Callable[[Path, str], FollowedStudy] = FollowedStudy,
    ) -> None:
        """Show the studies in the directories `roots`, and the workspaces `named`. Reads nothing yet."""
        self.listing = Listing(roots, named, self._known_page)
        self._follow = follow
        self._followed: dict[str, FollowedStudy] = {}
        self._servers, self._kept = Lane("the servers"), KeptAnswers()

    async def study(self, id: str) -> FollowedStudy:
        """The study that is called so in addresses. Raises WorkspaceError if there is none."""
        followed = self._followed.get(id)
        if followed is None or followed.is_gone:
            if followed is not None:
                await self.listing.find()  # the list may not have noticed the study yet
            path = await self.listing.path_of(id)
            if path is None:
                raise WorkspaceError(f"there is no study {id!r} here; it may have been removed")
            followed = self._followed.get(id)  # somebody else may have asked meanwhile
            if followed is None or followed.is_gone:
                followed = self._followed[id] = self._follow(path, id)
                self._forget_some()
        return followed

    async def workers(self) -> bytes:
        """All workers and queues, as JSON. Raises SlowError."""
        return await self._kept.recent(
            "workers", lambda: self._servers.run(lambda: made(lambda: to_json(workers_page())), LIMIT_S)
        )

    def open_pages(self) -> list[StudyPage]:
        """The pages of the studies that are not over, and of those that somebody looks at, as they were last seen."""
        listed = {page.workspace: page for page in self.listing.open_pages()}
        seen = [f.page for f in self._followed.values() if f.page is not None and not f.is_resting]
        return list((listed | {page.workspace: page for page in seen}).values())

    def close(self) -> None:
        """End all streams."""
        self.listing.close()
        for followed in self._followed.values():
            followed.close()

    def _forget_some(self) -> None:
        """Drop views of studies that nobody looks at; first those that were asked about longest ago."""
        unused = [f for f in self._followed.values() if f.is_resting or f.is_gone]
        unused.sort(key=lambda followed: followed.asked)
        for followed in unused[: max(0, len(unused) - MOST_RESTING)]:
            del self._followed[followed.id]

    def _known_page(self, path: Path) -> StudyPage | None:
        """The page of a study that is followed now; the threads that read the list call it."""
        for followed in list(self._followed.values()):
            if followed.path == path and time.monotonic() - followed.looked < KNOWN_S:
                return followed.page
        return None
