from __future__ import annotations

import io
import json
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from in_process import merlin
from small_plans import plan, step
from status_study import FAILED, add, chunk, failed
from study_on_disk import write_study

from merlin.base.text import count, duration, rate, size
from merlin.cli.display import LATE_S, LINE_EVERY_S, Speed, late_progress
from merlin.cli.output import print_answer, to_json
from merlin.cli.progress import LineDisplay, LiveDisplay
from merlin.execution.events import Progress
from merlin.plan.task_states import TaskCounts


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def counts(planned: int, ok: int, failed: int = 0, running: int = 1) -> TaskCounts:
    rest = planned - ok - failed - running
    return TaskCounts(
        planned=planned, ok=ok, failed=failed, skipped=0, running=running, ready=rest, waiting=0, queued=0
    )


def progress(**per_step: TaskCounts) -> Progress:
    return Progress(seconds=0.0, per_step=per_step, num_workers=1)


def test_lines_are_few_and_tell_each_step_that_ends_once() -> None:
    lines: list[str] = []
    clock = Clock()
    display = LineDisplay(write=lines.append, clock=clock)
    display.started(plan(), progress(a=counts(1000, 0), b=counts(10, 10, running=0)))
    assert lines == ["p: 2 steps, 1,010 tasks, 10 of them done before"]
    for k in range(1, 100):
        clock.now = k * LINE_EVERY_S / 50
        display.progress(progress(a=counts(1000, k * 10), b=counts(10, 10, running=0)))
    assert len(lines) == 2
    assert lines[1].startswith("a: 500 ok of 1,000, 100/s, 5.0 s to go")
    for _ in range(3):
        display.progress(progress(a=counts(1000, 990, 10, running=0), b=counts(10, 10, running=0)))
    assert lines[2:] == ["a: 990 ok, 10 failed of 1,000"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_late_bar_is_there_only_after_some_seconds_and_until_the_end(monkeypatch) -> None:
    terminal, clock = Terminal(), Clock()
    monkeypatch.setattr(sys, "stderr", terminal)
    with late_progress("reading samples", "rows", clock=clock) as report:
        report(1, 10)
        report(10, 10)
        assert terminal.getvalue() == ""
        clock.now = LATE_S
        report(1, 10)
        assert "reading samples" in terminal.getvalue()
        report(10, 10)
        size_at_end = len(terminal.getvalue())
    assert len(terminal.getvalue()) == size_at_end


def test_speed_follows_the_last_seconds_only() -> None:
    speed = Speed(window_s=10)
    for k in range(100):
        speed.add(float(k), k * 5)
    for k in range(100, 120):
        speed.add(float(k), 500 + (k - 100) * 50)
    assert speed.per_second() == pytest.approx(50)


def test_numbers_are_written_for_people() -> None:
    times = (0.42, 12.3, 185, 7800, None)
    assert [duration(s) for s in times] == [
        "0.4 s",
        "12 s",
        "3 min 05 s",
        "2 h 10 min",
        "",
    ]
    assert [rate(r) for r in (1234.4, 2.5, 0.01, 0)] == ["1,234/s", "2.5/s", "0.6/min", ""]
    assert [size(n) for n in (12, 3_400_000)] == ["12 B", "3.4 MB"]
    assert [count(1, "task"), count(1200, "task"), count(2, "directory", "directories")] == [
        "1 task",
        "1,200 tasks",
        "2 directories",
    ]


def test_json_has_no_nan() -> None:
    assert to_json([Decimal("0.25")]) == "[\n  0.25\n]"  # what DuckDB makes of 100.0 * 3 is a number, too
    assert to_json({"a": [float("nan"), 1.5]}) == '{\n  "a": [\n    null,\n    1.5\n  ]\n}'


def test_bars_are_drawn_for_every_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}.items():
        monkeypatch.setenv(name, value)  # whatever terminal the tests run in, or none
    with LiveDisplay(clock=Clock()) as display:
        display.started(plan(), progress(simulate=counts(1000, 0), collect=counts(2, 0, running=0)))
        display.progress(progress(simulate=counts(1000, 480, 20), collect=counts(2, 0, running=0)))
        display.note("a [note] stays")
    drawn = capsys.readouterr().err
    assert "500/1,000" in drawn
    assert "20 failed" in drawn
    assert "collect" in drawn
    assert "a [note] stays" in drawn


def test_columns_of_the_same_name_are_numbered_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_answer(("step", "step", "step_1", "n"), [("a", "b", "c", 1)], as_json=True, as_csv=False)
    assert json.loads(capsys.readouterr().out) == [{"step": "a", "step_2": "b", "step_1": "c", "n": 1}]


def test_a_terminal_shows_the_columns_that_it_has_room_for_those_asked_for_first(monkeypatch) -> None:
    columns, row = [f"s{i}" for i in range(9)], list(range(9))
    shown = {}
    for stdout in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setenv("COLUMNS", "17")
        print_answer(columns, [row], as_json=False, as_csv=False, first=["s7"])
        shown[type(stdout)] = [" ".join(line.split()) for line in stdout.getvalue().splitlines()]
    assert shown[Terminal][2:] == ["0 1 2 7", "and 5 more columns: --out FILE, --csv or --json"]
    assert shown[io.StringIO][2:] == ["0 1 2 3 4 5 6 7 8"]


def test_an_example_of_a_failure_is_named_by_its_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path / "w", step("sim", 2), step("end", 1, per_sample=False), first=5)
    for instance in ("sim", "end"):
        add(study, chunk(instance, 0, [FAILED], failures=(failed(0),)))
    assert merlin("failures", study.path) == 0
    out = capsys.readouterr().out
    assert "  example  sample 5  X=" in out and "  example  task 0\n" in out
