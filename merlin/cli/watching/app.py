"""The application: which screen is open."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType

from merlin.cli.watching.failures_screen import FailuresScreen
from merlin.cli.watching.followed import FollowingApp, OpenFailures, OpenTask, OpenTasks, Seen
from merlin.cli.watching.help_screen import HelpScreen
from merlin.cli.watching.study_screen import StudyScreen
from merlin.cli.watching.task_screen import TaskScreen
from merlin.cli.watching.tasks_screen import TasksScreen
from merlin.views.study_page import StudyView

THEMES = ("ansi-dark", "textual-ansi")  # the terminal's own colours, in newer and older textual


class WatchApp(FollowingApp):
    """A study, followed until one leaves."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    LiveTable > .datatable--header { background: transparent; color: $foreground; text-style: bold; }
    LiveTable > .datatable--cursor { background: transparent; color: $foreground; text-style: none; }
    LiveTable:focus > .datatable--cursor { background: $primary; color: $foreground; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
        Binding("question_mark", "help", "Help", key_display="?"),
    ]

    def on_mount(self) -> None:
        with suppress(RuntimeError, ValueError):  # only the main thread can handle signals
            for number in (signal.SIGTERM, signal.SIGHUP):  # leave the terminal as it was
                end = partial(self.exit, return_code=128 + number)
                asyncio.get_running_loop().add_signal_handler(number, end)
        # the filter that takes colours away does not know the terminal's own
        if "NO_COLOR" not in os.environ:
            self.theme = next((name for name in THEMES if name in self.available_themes), self.theme)
        self.push_screen(StudyScreen())
        self.follow()

    def show(self, seen: Seen) -> None:
        if isinstance(self.screen, StudyScreen):
            self.screen.show(seen)

    def action_help(self) -> None:
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen())

    def on_open_failures(self, message: OpenFailures) -> None:
        self.push_screen(FailuresScreen())

    def on_open_tasks(self, message: OpenTasks) -> None:
        self.push_screen(TasksScreen(message.step))

    def on_open_task(self, message: OpenTask) -> None:
        self.push_screen(TaskScreen(message.instance, message.number))


def watch(view: StudyView) -> None:
    """Show the study until the user leaves; after SIGTERM and SIGHUP, end with the shell's code for them."""
    app = WatchApp(view)
    app.run()
    if app.return_code:
        sys.exit(app.return_code)
