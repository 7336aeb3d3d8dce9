"""The first screen: the steps of the study, how fast it goes on, and who works."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer

from merlin.base.text import count, duration, printable, rate
from merlin.cli.outcome_bar import COLOURS, bar
from merlin.cli.watching import words
from merlin.cli.watching.cells import cell, pieces
from merlin.cli.watching.followed import FollowingApp, OpenFailures, OpenTask, OpenTasks
from merlin.cli.watching.line import Line
from merlin.cli.watching.table import LiveTable

if TYPE_CHECKING:
    from rich.text import Text

    from merlin.cli.watching.followed import Seen
    from merlin.views.at_work import WorkerLine
    from merlin.views.step_lines import StepLine
    from merlin.views.study_page import StudyPage

CHART_HEIGHT = 3
NUMBERS = {"ok": 9, "failed": 7, "missing": 9, "pace": 7, "left": 12}
WORKERS = {"worker": 24, "runs": 0}
_TAKEN = sum(NUMBERS.values()) + 2 * (len(NUMBERS) + 2) + 1  # with the padding of columns, and a scroll bar


class StudyScreen(Screen[None]):
    """Choose a step to see its tasks, or a worker to see what it runs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "failures", "Failures"),
        Binding("t", "tasks", "All tasks"),
        Binding("tab", "staff", "Workers"),
    ]
    CSS = """
    StudyScreen { layout: vertical; }
    #head, #numbers { height: 1; }
    #why { height: auto; max-height: 4; color: $warning; }
    #steps { height: auto; max-height: 50%; }
    #pace { height: 1; margin-top: 1; }
    #chart { height: 3; }
    #staff { height: 1; margin-top: 1; }
    #workers { height: 1fr; min-height: 2; }
    """

    app: FollowingApp

    def compose(self) -> ComposeResult:
        yield Line(id="head")
        yield Line(id="numbers")
        yield Line(id="why")
        room = self.app.size.width - _TAKEN
        self._bar_width = max(8, min(40, room - min(30, max(12, room // 2))))
        names = {"step": max(8, room - self._bar_width), "": self._bar_width}
        yield LiveTable({**names, **NUMBERS}, id="steps", right=NUMBERS)
        yield Line(id="pace")
        yield Line(id="chart")
        yield Line(id="staff")
        yield LiveTable(WORKERS, id="workers")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#steps").focus()
        self.query_one("#head", Line).say("looking at the study …")

    def on_resize(self) -> None:
        if self.app.seen is not None:
            self.show(self.app.seen)

    def on_screen_resume(self) -> None:
        if self.app.seen is not None:
            self.show(self.app.seen)

    def show(self, seen: Seen) -> None:
        """Bring everything up to date."""
        page = seen.page
        self.query_one("#head", Line).say(pieces(_head(page)))
        self.query_one("#numbers", Line).say(cell(words.reconciled(page.totals)))
        why = self.query_one("#why", Line)
        reasons = [page.state_reason, *map(str, page.step_jobs), *page.notes]
        why.say(printable("\n".join(reason for reason in reasons if reason)))
        why.display = any(reasons)
        self.query_one("#steps", LiveTable).show({step.step: self._step(step, page) for step in page.steps})
        self._show_pace(seen)
        at_work = sum(len(worker.running) for worker in page.workers) or page.totals.running
        staff = words.workers_line(len(page.workers), page.num_slots, at_work)
        self.query_one("#staff", Line).say(cell(staff))
        workers = self.query_one("#workers", LiveTable)
        workers.show({worker.name: _worker(worker) for worker in page.workers})
        workers.display = bool(page.workers)
        self.refresh_bindings()

    def _show_pace(self, seen: Seen) -> None:
        values = seen.ended
        line = words.pace_line(values, seen.width_s)
        now = rate(seen.page.rate) if seen.page.state == "running" else ""
        self.query_one("#pace", Line).say(cell(words.joined([line, f"now {now}" if now else ""])))
        width = max(10, self.size.width - 1)
        self.query_one("#chart", Line).say(cell("\n".join(words.chart(values, width, CHART_HEIGHT)), "cyan"))

    def _step(self, step: StepLine, page: StudyPage) -> tuple[Text, ...]:
        is_running = page.state == "running" and step.missing
        return (
            cell(step.step),
            pieces((text, COLOURS[kind]) for kind, text in bar(step, self._bar_width)),
            cell(words.short(step.ok), right=True),
            cell(words.short(step.failed) if step.failed else "", "red", right=True),
            cell(words.short(step.missing) if step.missing else "", right=True),
            cell(rate(step.rate) if is_running else "", right=True),
            cell(duration(step.eta_s) if is_running else "", right=True),
        )

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only keys that lead to something."""
        page = self.app.seen.page if self.app.seen is not None else None
        if action == "failures":
            return page is not None and page.num_failures > 0
        return page is not None and bool(page.workers) if action == "staff" else True

    def action_staff(self) -> None:
        steps = self.query_one("#steps")
        (self.query_one("#workers") if steps.has_focus else steps).focus()

    def action_failures(self) -> None:
        self.post_message(OpenFailures())

    def action_tasks(self) -> None:
        self.post_message(OpenTasks(""))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        key = event.row_key.value or ""
        if event.data_table.id == "steps":
            self.post_message(OpenTasks(key))
            return
        workers = self.app.seen.page.workers if self.app.seen is not None else ()
        chunks = (chunk for worker in workers if worker.name == key for chunk in worker.running if chunk.step)
        running = next(chunks, None)
        if running is None:
            self.notify("nobody knows what it runs now", timeout=3)
        else:
            self.post_message(OpenTask(running.instance, running.lo))


def _head(page: StudyPage) -> words.Pieces:
    state = page.state if page.state != "running" else f"running for {duration(page.elapsed_s)}"
    parts = [
        (f"{page.name}  ", "bold"),
        (state, words.STATE_COLOURS.get(page.state, "")),
    ]
    if text := words.to_go(page.eta):
        parts.append((f"   {text}", ""))
    if page.num_failures:
        parts.append((f"   {count(page.num_failures, 'failure')}", "red"))
    return parts


def _worker(worker: WorkerLine) -> tuple[Text, ...]:
    chunks = ", ".join(
        f"{chunk.instance} [{chunk.lo:,}, {chunk.hi:,})" if chunk.step else "another study's"
        for chunk in worker.running
    )
    state = "ending" if worker.is_stopping else ""
    silent = f"silent for {duration(worker.age_s)}" if worker.age_s > 20 else ""
    return cell(worker.name), cell(words.joined([chunks, state, silent, worker.job]))
