"""A study that somebody looks at: one view of it, looked at once for all, in threads of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from merlin.dashboard.answers import to_json
from merlin.dashboard.channel import Channel
from merlin.dashboard.kept_answers import KeptAnswers, Make, made
from merlin.dashboard.lanes import Lane, SlowError
from merlin.errors import WorkspaceError
from merlin.views.study_page import StudyPage, StudyView
from merlin.workspace.directory import INFO_DIR

T = TypeVar("T")

PERIOD_S = 1.0  # between two looks, at least
TIMES_AS_LONG = 4.0  # a look may be repeated after so many times its duration
CURVE_S = 2.0  # between two looks at the throughput
ASKED_S = 10.0  # for which a study is followed after somebody asked about it
FRESH_S = 1.5  # a look is new enough for so long
PATIENCE_S = 2.0  # the wait for a new look, if there is an old one
LIMIT_S = 30.0  # the wait for an answer, if there is no old one
NUM_STAGES = 50  # parts of a study's progress: in each, failures are read again even if no task has failed
SLOW_LIMIT_S = 300.0  # the wait for an answer that reads everything, such as a report


class FollowedStudy:
    """Looks at a study while somebody listens or has just asked; else it rests, and costs only memory."""

    def __init__(self, path: Path, id: str, make_view: Callable[..., StudyView] = StudyView) -> None:
        self.path, self.id = path, id
        self.channel = Channel()
        self.is_gone = False
        self.page: StudyPage | None = None  # as it was last seen
        self.looked = float("-inf")  # when, by the monotonic clock
        self.asked = time.monotonic()
        self._view = make_view(path, id=id)
        self._lane = Lane(f"study {id}")
        self._files = Lane(f"files of study {id}")
        self._slow = Lane(f"all of study {id}")
        self._kept = KeptAnswers()
        self._shown: StudyPage | None = None  # without what changes by itself
        self._curve = b""
        self._curve_state: Hashable = None
        self._curve_looked = float("-inf")
        self._has_looked = asyncio.Event()
        # of the last look: a bug, because a look does not raise for a faulty study
        self._error: Exception | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def is_wanted(self) -> bool:
        return self.channel.num_listeners > 0 or time.monotonic() - self.asked < ASKED_S

    @property
    def is_resting(self) -> bool:
        return self._following is None and not self.is_wanted

    async def study(self) -> bytes:
        """The page of the study, as JSON. Raises SlowError and WorkspaceError (it is not there any more)."""
        await self._look_if_old()
        return to_json(self.page)

    async def read(self, key: Hashable, make: Callable[[StudyView], bytes]) -> bytes:
        """What `make` reads from the ledger, kept while the ledger stays as it is. Raises as `study`, and as `make`."""
        await self._look_if_old()
        state = _ledger_state(self.page)
        return await self._kept.get(
            key, state, lambda: self._lane.run(lambda: made(lambda: make(self._view)), LIMIT_S)
        )

    async def read_failures(self, make: Callable[[StudyView], bytes]) -> tuple[bytes, bool]:
        """What `make` reads of failures, and whether that is still valid: no failure came or went. Raises as `read`.

        While failures come, the answer is some seconds old: nobody has to wait until they are counted.
        """
        await self._look_if_old()
        state = await self._lane.run(lambda: _failure_state(self._view, self.page), LIMIT_S)
        return await self._kept.latest("failures", state, self._slowly(make))

    async def read_all(self, key: Hashable, make: Callable[[StudyView], bytes]) -> bytes:
        """Do what `read` does for a `make` that takes long: it does not delay the next look at the study."""
        await self._look_if_old()
        return await self._kept.get(key, _ledger_state(self.page), self._slowly(make))

    def _slowly(self, make: Callable[[StudyView], bytes]) -> Make:
        return lambda: self._slow.run(lambda: made(lambda: make(self._view)), SLOW_LIMIT_S)

    async def read_files(self, key: Hashable, make: Callable[[StudyView], bytes]) -> bytes:
        """What `make` reads from files that may change at any time. Raises as `make`."""
        self._want()
        return await self._kept.recent(key, lambda: self.run(lambda view: made(lambda: make(view))))

    async def run(self, work: Callable[[StudyView], T]) -> T:
        """Do this in the thread for files. Raises SlowError, and as `work`."""
        return await self._files.run(lambda: work(self._view), LIMIT_S)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events: `study` and `throughput`, and `gone` if the workspace was removed."""
        self._want()
        async with aclosing(self.channel.frames()) as frames:
            async for frame in frames:
                yield frame

    def close(self) -> None:
        """End the streams of all listeners."""
        self.channel.close()
        if self._following is not None:
            self._following.cancel()

    def _want(self) -> None:
        if self.is_gone:
            raise WorkspaceError(f"{self.path} is not there any more")
        self.asked = time.monotonic()
        if self._following is None:
            self._following = asyncio.create_task(self._follow())

    async def _look_if_old(self) -> None:
        self._want()
        if time.monotonic() - self.looked < FRESH_S:
            return
        try:
            async with asyncio.timeout(LIMIT_S if self.page is None else PATIENCE_S):
                await self._has_looked.wait()
        except TimeoutError:
            if self.page is None:
                raise SlowError(f"{self.path} could not be read within {LIMIT_S:g} s") from None
        if self.is_gone:
            raise WorkspaceError(f"{self.path} is not there any more")
        if self._error is not None:
            raise self._error

    async def _follow(self) -> None:
        try:
            while self.is_wanted and not self.is_gone:
                began = time.monotonic()
                try:
                    await self._look()
                    self._error = None
                except Exception as error:  # noqa: BLE001  those who ask get it, and the next look may succeed
                    self._error = error
                self._has_looked.set()
                self._has_looked = asyncio.Event()
                took = time.monotonic() - began
                await asyncio.sleep(max(PERIOD_S, TIMES_AS_LONG * took) - took)
        finally:
            self._following = None

    async def _look(self) -> None:
        """Look at the study once, and tell all who listen what is new."""
        wants_curve = self.channel.num_listeners > 0 and time.monotonic() - self._curve_looked >= CURVE_S
        page, curve = await self._lane.run(lambda: self._see(wants_curve))
        self.page, self.looked = page, time.monotonic()
        shown = None if page is None else _without_clocks(page)
        if page is None:
            self.is_gone = True
            self.channel.publish("gone", to_json({"error": f"{self.path} is not there any more"}))
            self.channel.close()
        else:
            self.channel.publish("study", to_json(page), is_news=shown != self._shown)
        self._shown = shown
        if curve and curve != self._curve:
            self._curve = curve
            self.channel.publish("throughput", curve)

    def _see(self, wants_curve: bool) -> tuple[StudyPage | None, bytes]:
        """The page (None: there is no workspace any more) and the throughput (b"": as it was). In a thread."""
        page = self._view.look()
        if page.state == "unreadable":
            return (page if (self.path / INFO_DIR).is_dir() else None), b""
        state = _ledger_state(page)
        if not wants_curve or state == self._curve_state:
            return page, b""
        self._curve_looked, self._curve_state = time.monotonic(), state
        return page, to_json(self._view.throughput())


def _ledger_state(page: StudyPage | None) -> Hashable:
    """A value that changes as soon as the ledger has grown."""
    return None if page is None else (page.ledger_bytes, page.state, page.extensions, page.totals)


def _failure_state(view: StudyView, page: StudyPage | None) -> Hashable:
    """A value that changes when a task fails, also again, or counts as failed no more; and now and then.

    Tasks that end ok also change how much more often some inputs fail than others, but only little at a time.
    """
    if page is None or page.state == "unreadable":
        return None
    ever = tuple(sum(step.failed) for step in view.throughput().steps.values())
    left = tuple(step.failed for step in page.steps)
    progress = round(NUM_STAGES * page.totals.ok / max(1, page.totals.planned))
    return ever, left, progress, page.state, page.extensions


def _without_clocks(page: StudyPage) -> StudyPage:
    """The page without times that change while nothing happens; every reader can update these itself."""
    workers = tuple(replace(worker, age_s=0.0) for worker in page.workers)
    return replace(page, now=0.0, elapsed_s=0.0, workers=workers)
