"""The study that all screens are about, looked at once per second in a thread; and what screens ask to be opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct
from textual.app import App
from textual.message import Message
from textual.screen import Screen

from merlin.cli.watching.cells import cell
from merlin.cli.watching.line import Line
from merlin.errors import MerlinError
from merlin.views.study_page import StudyPage, StudyView

LOOK_S = 1.0

T = TypeVar("T")


class Seen(Struct, frozen=True, kw_only=True):
    """The study at one moment."""

    page: StudyPage
    ended: tuple[int, ...]  # tasks per interval
    width_s: float  # of the intervals


class OpenTasks(Message):
    """The tasks of a step are wanted; of all steps, if it is ""."""

    def __init__(self, step: str) -> None:
        super().__init__()
        self.step = step


class OpenTask(Message):
    """One task is wanted."""

    def __init__(self, instance: str, number: int) -> None:
        super().__init__()
        self.instance, self.number = instance, number


class OpenFailures(Message):
    """The screen of what has failed is wanted."""


class FollowingApp(App[None]):
    """Follows a study; `show` is called whenever it was looked at."""

    def __init__(self, view: StudyView) -> None:
        super().__init__()
        self.view = view
        self.seen: Seen | None = None
        self._is_looking = False

    def follow(self) -> None:
        """Look at the study from now on."""
        self.set_interval(LOOK_S, self._look)
        self._look()

    def show(self, seen: Seen) -> None:
        """Bring the screen up to date."""

    def _look(self) -> None:
        if not self._is_looking:  # a large ledger may take longer than a second
            self._is_looking = True
            self.run_worker(self._read, thread=True, group="look")

    def _read(self) -> None:
        """Look at the study in a thread, and hand what was seen to the app."""
        page = self.view.look()
        try:
            bars = self.view.throughput()
            counts = [numbers for step in bars.steps.values() for numbers in (step.ok, step.failed)]
            ended, width_s = tuple(sum(at_once) for at_once in zip(*counts, strict=True)), bars.width_s
        except MerlinError:  # the page says what is wrong
            ended, width_s = (), 1.0
        self.call_from_thread(self._take, Seen(page=page, ended=ended, width_s=width_s))

    def _take(self, seen: Seen) -> None:
        self.seen, self._is_looking = seen, False
        self.show(seen)


class ReadingScreen(Screen[None]):
    """A screen that reads the study in a thread: a large ledger takes a while."""

    app: FollowingApp

    def read(self, ask: Callable[[], T], show: Callable[[T], None], said: Line) -> None:
        """Call `ask` in a thread, and `show` with its answer; if there is none, `said` says why."""

        def run() -> None:
            try:
                answer = ask()
            except MerlinError as error:
                self.app.call_from_thread(said.say, cell(str(error), "red"))
                return
            self.app.call_from_thread(show, answer)

        self.run_worker(run, thread=True, exclusive=True, group="read")
