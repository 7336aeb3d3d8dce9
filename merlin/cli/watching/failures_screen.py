"""What has failed, by cause, with examples."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer

from merlin.base.text import count, printable
from merlin.cli.advice import shown_range
from merlin.cli.watching import words
from merlin.cli.watching.cells import cell
from merlin.cli.watching.followed import OpenTask, ReadingScreen
from merlin.cli.watching.line import Line
from merlin.cli.watching.table import LiveTable
from merlin.status.failures import Example, FailureGroup, group_failures
from merlin.workspace.directory import open_workspace, shown_together

if TYPE_CHECKING:
    from rich.text import Text


GROUPS = {"tasks": 8, "step": 12, "kind": 16, "what it said last": 0}
EXAMPLES = {"example": 24, "inputs": 0}
REFRESH_S = 5.0
TAIL_LINES = 5


class FailuresScreen(ReadingScreen):
    """Choose a cause, and then one of its examples to see the log."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back"),
        Binding("tab", "app.focus_next", "Examples", show=True),
    ]
    CSS = """
    FailuresScreen { layout: vertical; }
    #what { height: 1; }
    #groups { height: 1fr; min-height: 3; }
    #tail { height: auto; max-height: 6; border-top: solid; }
    #examples { height: auto; max-height: 5; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._groups: dict[str, FailureGroup] = {}
        self._num = -1  # failures that the groups were made of

    def compose(self) -> ComposeResult:
        yield Line(id="what")
        yield LiveTable(GROUPS, id="groups", right=("tasks",))
        yield Line(id="tail")
        yield LiveTable(EXAMPLES, id="examples")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#groups").focus()
        self.query_one("#what", Line).say("looking for failures …")
        self.set_interval(REFRESH_S, self._load)
        self._load()

    def _load(self) -> None:
        num = self.app.seen.page.num_failures if self.app.seen is not None else 0
        if self.is_current and num != self._num:
            self.read(self._now, partial(self._show, num), self.query_one("#what", Line))

    def _now(self) -> list[FailureGroup]:
        studies = shown_together(open_workspace(self.app.view.path))
        return [group for study in studies for group in group_failures(study)]

    def _show(self, num: int, groups: list[FailureGroup]) -> None:
        self._num = num
        self._groups = {f"{group.extension}/{group.id}": group for group in groups}
        total = sum(group.count for group in groups)
        said = (
            f"{count(total, 'task')} failed, for {count(len(groups), 'reason')}"
            if total
            else "nothing has failed"
        )
        self.query_one("#what", Line).say(cell(said, "bold"))
        self.query_one("#groups", LiveTable).show({key: _row(group) for key, group in self._groups.items()})
        self._show_chosen()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if event.data_table.id == "groups":
            self._show_chosen()

    def _show_chosen(self) -> None:
        group = self._groups.get(self.query_one("#groups", LiveTable).chosen or "")
        said = "" if group is None else words.tail_of(group.log_tail or group.cause, TAIL_LINES)
        more = "" if group is None else "; ".join(map(shown_range, group.ranges))
        self.query_one("#tail", Line).say("\n".join(part for part in (said, printable(more)) if part))
        examples = {} if group is None else {_key(group, e): _example(group, e) for e in group.examples}
        self.query_one("#examples", LiveTable).show(examples)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "groups":
            self.query_one("#examples").focus()
            return
        instance, _, task = (event.row_key.value or "").rpartition("\n")
        self.post_message(OpenTask(instance, int(task)))

    def action_back(self) -> None:
        if self.query_one("#examples").has_focus:
            self.query_one("#groups").focus()
        else:
            self.app.pop_screen()


def _row(group: FailureGroup) -> tuple[Text, ...]:
    return (
        cell(f"{group.count:,}", right=True),
        cell(group.step),
        cell(group.exit_class),
        cell(group.signature),
    )


def _key(group: FailureGroup, example: Example) -> str:
    instance = f"{group.extension}/{example.instance}" if group.extension else example.instance
    return f"{instance}\n{example.task}"


def _example(group: FailureGroup, example: Example) -> tuple[Text, ...]:
    number = example.task if example.sample_id is None else example.sample_id
    inputs = "  ".join(f"{name}={value}" for name, value in example.inputs.items())
    return cell(f"{example.instance} {number:,}"), cell(inputs)
