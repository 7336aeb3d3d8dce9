"""What a notebook shows of a study, and that it follows the study until its end."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import wait_until

import merlin
from merlin.api import notebook
from merlin.api.study_html import page_html, progress_html
from merlin.execution.events import Progress
from merlin.plan.task_states import TaskCounts
from merlin.spec.load import load_spec
from merlin.views.study_page import StudyPage
from merlin.workspace.directory import Workspace
from merlin.workspace.holding import lock
from merlin.workspace.prepare import prepare_study

SPEC = """\
description: {name: hello<script>, description: d}
study: [{name: greet, description: d, run: {cmd: "echo <b>"}}]
"""


@dataclass
class FakeIPython:
    """The part of IPython that shows outputs, and its module `display`."""

    cell: int = 1
    shown: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)

    def get_ipython(self) -> Any:
        return SimpleNamespace(kernel=object(), execution_count=self.cell)

    HTML = staticmethod(str)

    def display(self, html: str, *, display_id: bool) -> Any:
        assert display_id
        self.shown.append(html)
        return SimpleNamespace(update=self.replaced.append)


@pytest.fixture
def ipython(monkeypatch: pytest.MonkeyPatch) -> FakeIPython:
    fake = FakeIPython()
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    monkeypatch.setattr(notebook, "FOLLOW_S", 0.01)
    return fake


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "hello.yaml").write_text(SPEC)
    return prepare_study(load_spec(tmp_path / "hello.yaml", variables={"OUTPUT_PATH": str(tmp_path)}))


def counts(ok: int, failed: int = 0, planned: int = 10) -> TaskCounts:
    rest = planned - ok - failed
    return TaskCounts(
        planned=planned, ok=ok, failed=failed, skipped=0, running=rest, ready=0, waiting=0, queued=0
    )


def words_of(html: str) -> str:
    tags, words = [], []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)  # type: ignore[method-assign]
    parser.handle_data = words.append  # type: ignore[method-assign]
    parser.feed(html)
    assert "script" not in tags
    return " ".join("".join(f" {word}" for word in words).split())


def test_a_study_is_a_few_lines_of_html_in_which_nothing_of_it_is_markup(workspace: Workspace) -> None:
    html = merlin.Study(workspace.path)._repr_html_()
    assert words_of(html).startswith("● hello<script> new")
    assert "greet 0 ok of 1" in words_of(html)


def test_a_run_shows_its_pace_and_what_is_left() -> None:
    first = Progress(seconds=1.0, per_step={"greet": counts(0)}, num_workers=1)
    now = Progress(seconds=5.0, per_step={"greet": counts(3, 1)}, num_workers=1)
    words = words_of(progress_html("hello", Path("/w"), now, first))
    assert "3 ok, 1 failed of 10 1.0/s, 6.0 s left" in words
    assert "/s" not in words_of(progress_html("hello", Path("/w"), first, first))


def test_a_script_shows_nothing(workspace: Workspace) -> None:
    view = notebook.RunView(workspace)
    view.update(Progress(seconds=0.0, per_step={"greet": counts(0)}, num_workers=1))
    view.end()
    assert view.cell is None
    with pytest.raises(NotImplementedError):
        merlin.Study(workspace.path)._ipython_display_()


def test_a_run_replaces_one_output_and_ends_with_what_the_ledger_says(
    workspace: Workspace, ipython: FakeIPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "UPDATE_S", 0.0)
    view = notebook.RunView(workspace)
    for ok in (0, 1):
        view.update(Progress(seconds=float(ok), per_step={"greet": counts(ok, planned=1)}, num_workers=1))
    view.end()
    assert view.cell == 1 and len(ipython.shown) == 1
    assert "1 ok of 1" in words_of(ipython.replaced[0]) and "new" in words_of(ipython.replaced[1])


def test_the_cell_that_ran_a_study_does_not_show_it_twice(workspace: Workspace, ipython: FakeIPython) -> None:
    study = merlin.Study(workspace.path)
    study.shown_in = 1
    study._ipython_display_()
    assert ipython.shown == []
    ipython.cell = 2
    study._ipython_display_()
    assert len(ipython.shown) == 1


def test_a_study_that_somebody_runs_is_followed_until_its_end(
    workspace: Workspace, ipython: FakeIPython
) -> None:
    study = merlin.Study(workspace.path)
    with lock(workspace):
        study._ipython_display_()
        wait_until(lambda: len(ipython.replaced) > 1, lambda: str(ipython))
        assert "running" in words_of(ipython.shown[0])
    name = f"merlin: {study.name}"
    wait_until(lambda: name not in {thread.name for thread in threading.enumerate()}, lambda: str(ipython))
    assert "new" in words_of(ipython.replaced[-1])


def test_what_keeps_a_study_from_going_on_is_shown(workspace: Workspace) -> None:
    from msgspec.structs import replace

    from merlin.views.obstacle import Obstacle

    page: StudyPage = merlin.Study(workspace.path).status()
    held_up = replace(page, obstacles=(Obstacle(what="no <worker>", remedy="merlin run-workers"),))
    assert "no <worker>; merlin run-workers" in words_of(page_html(held_up))
