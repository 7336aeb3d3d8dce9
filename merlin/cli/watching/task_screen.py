"""One task: how it ended, what it was given, and its log."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer

from merlin.base.text import printable, short_name, size
from merlin.cli.outcome_bar import COLOURS
from merlin.cli.watching import words
from merlin.cli.watching.cells import pieces
from merlin.cli.watching.followed import ReadingScreen
from merlin.cli.watching.line import Line
from merlin.views.task_files import FilePart, TaskFile, read_file
from merlin.views.task_page import OneTask, task_page

SHOWN_BYTES = 65_536  # of the end of a log
REFRESH_S = 1.0
MAX_INPUTS = 12


class TaskScreen(ReadingScreen):
    """A log is followed while the task runs, unless one has scrolled up."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back"),
        Binding("tab", "file(1)", "Next file", priority=True),
        Binding("shift+tab", "file(-1)", "Previous file", show=False, priority=True),
        Binding("n", "task(1)", "Next task"),
        Binding("p", "task(-1)", "Previous task"),
        Binding("end,G", "end", "End", key_display="end"),
        Binding("home", "begin", "Begin", show=False),
    ]
    CSS = """
    TaskScreen { layout: vertical; }
    #facts, #inputs, #files { height: auto; max-height: 4; }
    #text { height: 1fr; border-top: solid; }
    #log { width: auto; min-width: 100%; }
    """

    def __init__(self, instance: str, task: int) -> None:
        super().__init__()
        self._instance, self._number = instance, task
        self._found: OneTask | None = None
        self._file = ""  # its name
        self._text = ""

    def compose(self) -> ComposeResult:
        yield Line(id="facts")
        yield Line(id="inputs")
        yield Line(id="files")
        with VerticalScroll(id="text"):
            yield Line(id="log")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#text").focus()
        self.set_interval(REFRESH_S, self._load)
        self._load()

    def _load(self) -> None:
        if self.is_current:
            task = self._instance, self._number
            ask = partial(self._look, *task, self._file)
            self.read(ask, partial(self._show, task), self.query_one("#facts", Line))

    def _look(self, instance: str, task: int, file: str) -> tuple[OneTask, FilePart | None]:
        """The task, and the end of one of its files."""
        found = task_page(self.app.view, instance, task)
        names = [each.name for each in found.files]
        chosen = file if file in names else _best(found)
        if not chosen:
            return found, None
        return found, read_file(self.app.view, instance, task, chosen, -SHOWN_BYTES, SHOWN_BYTES)

    def _show(self, task: tuple[str, int], seen: tuple[OneTask, FilePart | None]) -> None:
        if task != (self._instance, self._number):
            return
        found, part = seen
        self._found = found
        self.query_one("#facts", Line).say(pieces(_facts(found)))
        inputs = [f"{name}={value}" for name, value in found.inputs.items()]
        more = f" and {len(inputs) - MAX_INPUTS} more" if len(inputs) > MAX_INPUTS else ""
        self.query_one("#inputs", Line).say(printable("  ".join(inputs[:MAX_INPUTS]) + more))
        if part is not None and self._file in ("", part.name):
            self._file = part.name
            self._show_text(_shown(part, found.directory))
        elif part is None:
            self._show_text(found.tail or "this task has left no file")
        self.query_one("#files", Line).say(pieces(_files(found.files, self._file)))

    def _show_text(self, text: str) -> None:
        if text == self._text:
            return
        scroll = self.query_one("#text", VerticalScroll)
        is_at_end = not self._text or scroll.scroll_y >= scroll.max_scroll_y - 1
        self._text = text
        self.query_one("#log", Line).say(printable(text))
        if is_at_end:
            self.call_after_refresh(lambda: scroll.scroll_end(animate=False))

    def action_file(self, step: int) -> None:
        """The next of its files."""
        names = [file.name for file in self._found.files] if self._found is not None else []
        if names:
            at = names.index(self._file) if self._file in names else -1
            self._file, self._text = names[(at + step) % len(names)], ""
            self._load()

    def action_task(self, step: int) -> None:
        """The task before or after it, of the same instance."""
        if self._found is None:
            return
        other = self._found.next if step > 0 else self._found.previous
        if other is not None:
            self._number, self._file, self._text, self._found = other, "", "", None
            self._load()

    def action_end(self) -> None:
        self.query_one("#text", VerticalScroll).scroll_end(animate=False)

    def action_begin(self) -> None:
        self.query_one("#text", VerticalScroll).scroll_home(animate=False)

    def action_back(self) -> None:
        self.app.pop_screen()


def _best(task: OneTask) -> str:
    """The file that one wants to see first: what it wrote to stderr if it failed, else to stdout."""
    logs = [file for file in task.files if file.kind == "log" and file.size]
    wanted = (".err", ".out") if task.outcome == "failed" else (".out", ".err")
    ordered = [file.name for end in wanted for file in logs if file.name.endswith(end)]
    every = [*ordered, *(file.name for file in logs), *(f.name for f in task.files if f.kind != "data")]
    return every[0] if every else ""


def _facts(task: OneTask) -> words.Pieces:
    number = f"sample {task.sample_id:,}" if task.sample_id is not None else f"task {task.task:,}"
    where = " on ".join(part for part in (short_name(task.worker), task.host) if part)
    ended = f"exit code {task.exit_code}, {task.seconds:.3f} s" if task.outcome in ("ok", "failed") else ""
    tries = f"{task.tries + 1} tries" if task.tries else ""
    return [
        (f"{task.instance}  {number}  ", "bold"),
        (task.outcome, COLOURS.get(task.outcome, "")),
        (f"   {words.joined([task.cause, ended, tries, where])}", ""),
        (f"\n{task.directory}" if task.directory else "", ""),
    ]


def _files(files: tuple[TaskFile, ...], chosen: str) -> words.Pieces:
    return [
        (f"{file.name} ({size(file.size)})  ", "reverse" if file.name == chosen else "") for file in files
    ]


def _shown(part: FilePart, directory: str) -> str:
    if part.text is None:
        return f"{part.name} is no text"
    if not part.offset:
        return part.text or f"{part.name} is empty"
    left_out = f"… the first {size(part.offset)} are left out; all of it: less {directory}/{part.name}\n"
    return left_out + part.text
