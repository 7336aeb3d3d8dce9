"""The list of all studies: found and read in threads, one for each place, while somebody wants to know."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

from msgspec import Struct

from merlin.dashboard.answers import to_json
from merlin.dashboard.channel import Channel
from merlin.dashboard.lanes import Lane, SlowError
from merlin.dashboard.listed_study import READING, ListedStudy
from merlin.dashboard.places import Place
from merlin.views.study_page import StudyPage

LOG = logging.getLogger(__name__)

PERIOD_S = 2.0  # between two looks at all places
SOON_S = 0.5  # the same, while studies are read for the first time
ASKED_S = 10.0  # for which the list is kept up to date after somebody asked for it
FRESH_S = 3.0  # the list is new enough for so long
PATIENCE_S = 0.5  # for a place that is being read; its studies are shown as they were, or as `reading`
SURE_S = 5.0  # the same, before the answer is that a study does not exist
LIMIT_S = 30.0
EVENT_BYTES = 256 << 10  # of a list that is sent every PERIOD_S; a longer one is sent less often


class StudyList(Struct, frozen=True, kw_only=True):
    """What the first page shows."""

    studies: Sequence[ListedStudy]  # the newest first
    roots: Sequence[str]  # the directories that are looked into
    problems: Sequence[str]  # why some of them cannot be read


class _Watched:
    """A place, with a thread that finds its studies and one that reads them."""

    def __init__(self, place: Place) -> None:
        name = str(place.root or "the workspaces")
        self.place, self.there = place, list[Path]()
        self._finder, self._reader = Lane(name), Lane(name)
        self._finding: asyncio.Task[None] | None = None

    async def find(self) -> None:
        """Find the studies of the place; calls that come meanwhile wait for the same search."""
        if self._finding is None:
            self._finding = asyncio.create_task(self._find())
        await asyncio.shield(self._finding)

    async def _find(self) -> None:
        try:
            self.there = await self._finder.run(self.place.find)
        except Exception as error:
            LOG.error("%s could not be searched", self._finder.name, exc_info=error)
        finally:
            self._finding = None

    async def read(self, ids: Mapping[Path, str], known_page: Callable[[Path], StudyPage | None]) -> None:
        """Read the studies of the place, unless that is being done already."""
        if not self._reader.is_busy:
            await self._reader.run(lambda: self._read(ids, known_page))

    def _read(self, ids: Mapping[Path, str], known_page: Callable[[Path], StudyPage | None]) -> None:
        try:
            self.place.read(ids, known_page)
        except Exception as error:
            LOG.error("%s could not be read", self._reader.name, exc_info=error)


class Listing:
    """Keeps the list of studies. It belongs to the event loop; slow work runs in threads."""

    def __init__(
        self,
        roots: Sequence[Path],
        named: Sequence[Path],
        known_page: Callable[[Path], StudyPage | None],
    ) -> None:
        """List the studies in the directories `roots`, and the workspaces `named`. Reads nothing yet.

        `known_page` returns the page of a study that is followed anyhow; threads call it.
        """
        self.roots, self._known_page = tuple(roots), known_page
        apart = [path for path in named if path.parent not in roots]
        places = [Place(root) for root in roots] + ([Place(named=apart)] if apart else [])
        self._places = [_Watched(place) for place in places]
        self._ids: dict[Path, str] = {}  # of all studies ever found: an address stays what it was
        self._paths: dict[str, Path] = {}
        self._channel = Channel()
        self._keeping: asyncio.Task[None] | None = None
        self._asked = self._looked = self._sent = float("-inf")
        self._shown = b""
        self._has_looked = asyncio.Event()

    # what others ask for

    async def studies(self) -> StudyList:
        """All studies; one that was not looked at yet is `reading`. Raises SlowError."""
        self.want()
        if time.monotonic() - self._looked >= FRESH_S:
            try:
                async with asyncio.timeout(LIMIT_S):
                    await self._has_looked.wait()
            except TimeoutError:
                raise SlowError(f"the studies could not be listed within {LIMIT_S:g} s") from None
        return self.seen()

    def seen(self) -> StudyList:
        """All studies as they were last seen."""
        lines = {line.id: line for each in self._places for line in each.place.lines(self._ids_of(each))}
        return StudyList(
            studies=sorted(lines.values(), key=lambda line: (line.when, line.id), reverse=True),
            roots=[str(root) for root in self.roots],
            problems=[each.place.problem for each in self._places if each.place.problem],
        )

    def open_pages(self) -> list[StudyPage]:
        """The pages of the studies that are not over, as they were last seen."""
        return [page for each in self._places for page in each.place.pages()]

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events: `studies`."""
        self.want()
        async with aclosing(self._channel.frames()) as frames:
            async for frame in frames:
                yield frame

    async def path_of(self, id: str) -> Path | None:
        """The workspace of the study that is called so in addresses."""
        if not self._is_there(id):
            await self.find(SURE_S)
        return self._paths[id] if self._is_there(id) else None

    def want(self) -> None:
        """Keep the list up to date for a while."""
        self._asked = time.monotonic()
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    def close(self) -> None:
        """End all streams."""
        self._channel.close()
        if self._keeping is not None:
            self._keeping.cancel()

    # looking

    async def _keep(self) -> None:
        try:
            while self._channel.num_listeners or time.monotonic() - self._asked < ASKED_S:
                await self.find(PATIENCE_S if self._ids else SURE_S)
                reading = [each.read(self._ids_of(each), self._known_page) for each in self._places]
                await _wait_for(reading, PATIENCE_S)
                self._looked = time.monotonic()
                self._has_looked.set()
                self._has_looked = asyncio.Event()
                is_reading = self._publish()
                await asyncio.sleep(SOON_S if is_reading else PERIOD_S)
        finally:
            self._keeping = None

    async def find(self, patience_s: float = PATIENCE_S) -> None:
        """Find out which studies there are; a place that does not answer keeps its last studies."""
        await _wait_for([each.find() for each in self._places], patience_s)
        found = {path for each in self._places for path in each.there}
        for path in sorted(found - self._ids.keys()):
            self._name(path)

    def _publish(self) -> bool:
        """Show the list if it changed; True if some studies were not looked at yet."""
        now, seen = time.monotonic(), self.seen()
        wait_s = PERIOD_S * math.ceil(len(self._shown) / EVENT_BYTES) - SOON_S
        if now - self._sent >= wait_s and (data := to_json(seen)) != self._shown:
            self._sent, self._shown = now, data
            self._channel.publish("studies", data)
        return any(study.state == READING for study in seen.studies)

    # names

    def _ids_of(self, watched: _Watched) -> Mapping[Path, str]:
        return {path: self._ids[path] for path in watched.there if path in self._ids}

    def _is_there(self, id: str) -> bool:
        path = self._paths.get(id)
        return path is not None and any(path in each.there for each in self._places)

    def _name(self, path: Path) -> None:
        """Give a study its name in addresses: that of its directory, with "~2" behind it for a second one."""
        id, number = path.name, 1
        while id in self._paths:
            number += 1
            id = f"{path.name}~{number}"
        self._ids[path], self._paths[id] = id, path


async def _wait_for(work: Sequence[Coroutine[None, None, None]], patience_s: float) -> None:
    """Wait until all is done, or `patience_s` is over; threads finish what they have begun."""
    if tasks := [asyncio.create_task(each) for each in work]:
        _, late = await asyncio.wait(tasks, timeout=patience_s)
        for task in late:
            task.cancel()
