"""`merlin status --watch`, driven by its keys without a terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from status_study import FAILED, OK, add, chunk, failed, fill, make_workspace

from merlin.base.text import printable
from merlin.cli.watching import words
from merlin.cli.watching.app import WatchApp
from merlin.status.eta import Eta
from merlin.views.study_page import StudyView
from merlin.workspace.directory import Workspace

LIMIT_S = 60.0
Do = Callable[[WatchApp, Any], Awaitable[None]]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Failures with logs, in one of which there is what a terminal would act on."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    made = make_workspace(tmp_path / "w")
    fill(made)
    for task in (3, 4):
        folder = made.task_dir(made.instance("sim/P.1"), task)
        folder.mkdir(parents=True)
        (folder / "sim.err").write_text(
            f"step {task}\n\x1b[31mValueError\x1b[0m: [red]bad[/red] {task}\x1b]0;x\x07\n"
        )
        (folder / "sim.out").write_text("began\n")
    return made


def drive(workspace: Workspace, do: Do, size: tuple[int, int] = (80, 24)) -> None:
    async def run() -> None:
        app = WatchApp(StudyView(workspace.path))
        async with app.run_test(size=size) as pilot:
            await shown(app, pilot, "sim")
            await do(app, pilot)

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))


def text_of(app: WatchApp) -> str:
    """What is on the screen."""
    lines = app.screen._compositor.render_strips(app.size)
    return "\n".join("".join(segment.text for segment in strip) for strip in lines)


async def shown(app: WatchApp, pilot: Any, *texts: str) -> None:
    """Wait until all of it is on the screen."""
    try:
        async with asyncio.timeout(LIMIT_S / 3):
            while not all(text in text_of(app) for text in texts):
                await pilot.pause(0.02)
    except TimeoutError:
        raise AssertionError(f"{texts} did not appear in\n{text_of(app)}") from None


def test_steps_lead_to_their_tasks_and_those_to_their_logs(workspace: Workspace) -> None:
    async def do(app: WatchApp, pilot: Any) -> None:
        await shown(
            app,
            pilot,
            "61 planned = 27 ok + 4 failed + 5 skipped + 25 missing",
            "post",
            "stopped",
            "throughput",
        )
        await pilot.press("enter")
        await shown(app, pilot, "tasks of sim", "FINISHED", "40 tasks")
        await pilot.press("o")
        await shown(app, pilot, "failed   3 tasks", "FAILED", "sim/P.1")
        await pilot.press("enter")
        await shown(
            app, pilot, "sample 3", "exit code 3", "sim.err", "ValueError: [red]bad[/red] 3", "X0=6.0"
        )
        assert "\x1b" not in text_of(app)
        await pilot.press("tab")
        await shown(app, pilot, "began")
        await pilot.press("n")
        await shown(app, pilot, "sample 4", "bad[/red] 4")
        await pilot.press("escape", "escape")
        await shown(app, pilot, "throughput")

    drive(workspace, do)


def test_tasks_are_shown_page_by_page_and_one_can_go_to_a_sample(workspace: Workspace) -> None:
    async def do(app: WatchApp, pilot: Any) -> None:
        await pilot.press("t")
        await shown(app, pilot, "all tasks", "61 tasks   page 1 (n: more)")
        await pilot.press("n")
        await shown(app, pilot, "page 2")
        await pilot.press("n", "n", "n")
        await shown(app, pilot, "end", "page 3")
        await pilot.press("p")
        await shown(app, pilot, "page 2")
        await pilot.press("g", "7", "enter")
        await shown(app, pilot, "3 tasks   page 1", "sim/P.2", "post")

    drive(workspace, do)


def test_failures_lead_to_examples_and_those_to_their_logs(workspace: Workspace) -> None:
    async def do(app: WatchApp, pilot: Any) -> None:
        await pilot.press("f")
        await shown(app, pilot, "4 tasks failed, for 3 reasons", "exit code 3", "timeout")
        await pilot.press("enter")
        await pilot.press("enter")
        await shown(app, pilot, "sample 3", "ValueError")
        await pilot.press("escape", "escape", "escape")
        await shown(app, pilot, "throughput")

    drive(workspace, do)


def test_inputs_that_go_with_a_failure_are_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made = make_workspace(tmp_path / "w", num=200)
    outcomes = [FAILED if i >= 150 else OK for i in range(200)]
    causes = tuple(failed(i, tail="diverged") for i in range(150, 200))
    add(made, chunk("sim/P.1", 0, outcomes, failures=causes), chunk("sim/P.2", 0, [OK] * 200))

    async def do(app: WatchApp, pilot: Any) -> None:
        await pilot.press("f")
        await shown(app, pilot, "of the tasks fail so, elsewhere")

    drive(made, do, (200, 30))


def test_what_happens_meanwhile_appears_and_the_cursor_stays(workspace: Workspace) -> None:
    async def do(app: WatchApp, pilot: Any) -> None:
        await pilot.press("down")
        add(workspace, chunk("end", 0, [0]))
        await shown(app, pilot, "61 planned = 28 ok")
        await pilot.press("enter")
        await shown(app, pilot, "tasks of post")

    drive(workspace, do)


def test_help_names_the_keys_and_q_leaves(workspace: Workspace) -> None:
    async def do(app: WatchApp, pilot: Any) -> None:
        await pilot.press("question_mark")
        await shown(app, pilot, "leave; the study goes on")
        await pilot.press("x")
        await shown(app, pilot, "throughput")
        await pilot.press("q")
        assert app.return_code == 0

    drive(workspace, do)


@pytest.mark.parametrize("size", [(40, 12), (200, 60)])
def test_it_fits_every_terminal(
    workspace: Workspace, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def do(app: WatchApp, pilot: Any) -> None:
        await shown(app, pilot, "sim", "post", "Failures")

    drive(workspace, do, size)


def test_a_study_that_cannot_be_read_says_why(workspace: Workspace) -> None:
    (workspace.info / "plan.json").write_text("{")

    async def run() -> None:
        app = WatchApp(StudyView(workspace.path))
        async with app.run_test(size=(300, 30)) as pilot:  # so wide that the path is in one line
            await shown(app, pilot, "unreadable", "plan.json")

    asyncio.run(run())


@given(st.lists(st.integers(0, 10**6), max_size=400), st.integers(1, 200), st.integers(1, 6))
def test_a_chart_has_its_size_and_shows_everything_that_is_not_nothing(
    values: list[int], width: int, height: int
) -> None:
    lines = words.chart(values, width, height)
    assert [len(line) for line in lines] == [width] * height
    if any(values):
        assert "█" in "".join(lines)
        if len(values) <= width:
            shown = lines[-1][width - len(values) :]
            assert [char != " " for char in shown] == [value > 0 for value in values]


def test_texts_for_people() -> None:
    assert words.to_go(Eta(low_s=9, mid_s=12, high_s=20)) == "about 12 s to go (9.0 s to 20 s)"
    assert words.to_go(Eta(low_s=0, mid_s=0, high_s=0)) == words.to_go(None) == ""
    assert words.short(1_234_567) == "1,234,567"
    assert words.short(100_000_000) == "100.00M"
    assert printable("a\tb\x07\x1b[2J\x1b]0;title\x07c\r\nd") == "a       bc\nd"
    assert words.workers_line(2, 16, 14) == "2 workers, 16 at a time, 14 at work"


def test_without_textual_the_missing_extra_is_named(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from merlin.cli import watch_study
    from merlin.errors import MissingExtraError

    monkeypatch.setattr(watch_study, "is_terminal", lambda: True)
    monkeypatch.setattr(sys, "stdin", _Terminal())
    for name in [name for name in sys.modules if name.partition(".")[0] == "textual"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("merlin.cli.watching")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    with pytest.raises(MissingExtraError, match=r"merlin-ensembles\[dashboard\]"):
        watch_study.watch_study(workspace, alone=True)


class _Terminal:
    def isatty(self) -> bool:
        return True
