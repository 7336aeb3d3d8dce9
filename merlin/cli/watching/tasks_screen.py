"""The tasks of a step, page by page."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input

from merlin.base.text import short_name
from merlin.cli.watching.cells import cell, pieces
from merlin.cli.watching.followed import OpenTask, ReadingScreen
from merlin.cli.watching.line import Line
from merlin.cli.watching.table import LiveTable
from merlin.views.task_list import TaskPage, tasks

if TYPE_CHECKING:
    from rich.text import Text

    from merlin.status.tasks import TaskRow

COLUMNS = {"task": 9, "instance": 14, "status": 11, "exit": 5, "seconds": 9, "worker": 0}
OUTCOMES = ("", "failed", "missing", "ok", "skipped")
_COLOURS = {"FINISHED": "green", "FAILED": "red", "CANCELLED": "yellow", "DRY_RUN": "magenta"}
REFRESH_S = 2.0


class TasksScreen(ReadingScreen):
    """Choose a task to see its files."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back"),
        Binding("n,pagedown", "next_page", "Next", key_display="n", priority=True),
        Binding("p,pageup", "previous_page", "Previous", key_display="p", priority=True),
        Binding("o", "outcome", "Outcome"),
        Binding("g", "go", "Go to sample"),
    ]
    CSS = """
    TasksScreen { layout: vertical; }
    #what { height: 1; }
    #tasks { height: 1fr; }
    #sample { display: none; height: 3; }
    """

    def __init__(self, step: str) -> None:
        super().__init__()
        self._step, self._outcome = step, ""
        self._after, self._earlier = 0, list[int]()  # positions where pages begin
        self._sample: int | None = None
        self._page: TaskPage | None = None

    def compose(self) -> ComposeResult:
        yield Line(id="what")
        yield LiveTable(COLUMNS, id="tasks", right=("task", "exit", "seconds"))
        yield Input(placeholder="number of the sample; empty for all", id="sample", type="integer")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#tasks").focus()
        self.query_one("#what", Line).say("looking for tasks …")
        self.set_interval(REFRESH_S, self._load)
        self.call_after_refresh(self._load)

    def on_screen_resume(self) -> None:
        self._load()

    def _load(self) -> None:
        if not self.is_current:
            return
        limit = max(5, min(200, self.query_one("#tasks").size.height - 1))
        wanted = self._outcome, self._after, self._sample
        ask = partial(
            tasks,
            self.app.view,
            self._step,
            self._outcome,
            after=self._after,
            limit=limit,
            sample=self._sample,
        )
        self.read(ask, partial(self._show, wanted), self.query_one("#what", Line))

    def _show(self, wanted: tuple[str, int, int | None], page: TaskPage) -> None:
        if wanted != (self._outcome, self._after, self._sample):
            return  # another page was asked for meanwhile
        self._page = page
        what = f"tasks of {self._step}" if self._step else "all tasks"
        kind = self._outcome or "any outcome"
        number = len(self._earlier) + 1
        more = " (n: more)" if page.next_after is not None else ""
        self.query_one("#what", Line).say(
            pieces([(what, "bold"), (f"   {kind}   {page.total:,} tasks   page {number}{more}", "")])
        )
        self.query_one("#tasks", LiveTable).show({f"{r.instance}\n{r.task}": _row(r) for r in page.rows})

    def action_next_page(self) -> None:
        if self._page is not None and self._page.next_after is not None:
            self._earlier.append(self._after)
            self._begin_at(self._page.next_after)

    def action_previous_page(self) -> None:
        if self._earlier:
            self._begin_at(self._earlier.pop())

    def _begin_at(self, after: int) -> None:
        self._after, self._page = after, None  # the next page is not known before this one is read
        self.query_one("#tasks", LiveTable).move_cursor(row=0)
        self._load()

    def action_outcome(self) -> None:
        """The tasks with the next outcome, from the beginning."""
        self._outcome = OUTCOMES[(OUTCOMES.index(self._outcome) + 1) % len(OUTCOMES)]
        self._restart()

    def _restart(self) -> None:
        self._earlier.clear()
        self._begin_at(0)

    def action_go(self) -> None:
        asked = self.query_one("#sample", Input)
        asked.display = True
        asked.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.input.display = False
        self._sample = int(event.value) if event.value.strip().isdecimal() else None
        event.input.value = ""
        self.query_one("#tasks").focus()
        self._restart()

    def action_back(self) -> None:
        asked = self.query_one("#sample", Input)
        if asked.display:
            asked.display = False
            self.query_one("#tasks").focus()
        else:
            self.app.pop_screen()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        instance, _, task = (event.row_key.value or "").rpartition("\n")
        self.post_message(OpenTask(instance, int(task)))


def _row(row: TaskRow) -> tuple[Text, ...]:
    has_ended = row.status in ("FINISHED", "FAILED", "DRY_RUN")
    return (
        cell(f"{row.task:,}" if row.sample_id is None else f"{row.sample_id:,}", right=True),
        cell(row.instance),
        cell(row.status, _COLOURS.get(row.status, "")),
        cell(row.exit_code if has_ended else "", right=True),
        cell(f"{row.seconds:.3f}" if has_ended else "", right=True),
        cell(short_name(row.worker)),
    )
