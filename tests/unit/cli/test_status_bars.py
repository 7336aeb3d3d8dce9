from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process import merlin
from small_plans import step
from status_study import FAILED, OK, add, chunk, fill, make_workspace
from study_on_disk import write_study

from merlin.cli.outcome_bar import bar
from merlin.cli.study_status import MAX_FINISHED, show_advice

FILLS = {"ok": "o", "failed": "f", "skipped": "s", "missing": "m"}
NUMBERS = st.integers(0, 10**9)


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_a_bar_has_its_width_and_hides_nothing(ok: int, failed: int, skipped: int, missing: int) -> None:
    step: Any = SimpleNamespace(
        planned=ok + failed + skipped + missing, ok=ok, failed=failed, skipped=skipped, missing=missing
    )
    text = "".join(piece for _, piece in bar(step, 30, FILLS))
    if step.planned:
        assert len(text) == 30
    for letter, num in (("o", ok), ("f", failed), ("s", skipped), ("m", missing)):
        assert (letter in text) == (num > 0)


def test_a_run_that_does_not_tell_what_it_works_on_is_not_called_idle(capsys) -> None:
    for at_work, told in ((0, "2 worker processes\n"), (2, "2 worker processes, 2 at work\n")):
        run: Any = SimpleNamespace(
            state="running", num_workers=2, steps=[SimpleNamespace(running=at_work)], eta=None
        )
        show_advice([run], {"missing": 5, "failed": 0})
        assert capsys.readouterr().out == f"{told}how long the rest takes is not known yet\n"


def test_a_study_that_has_stopped_goes_at_no_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(make_workspace(tmp_path / "w"))
    assert merlin("status", tmp_path / "w") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("sim ")]
    assert line.endswith("10 missing of 40")


@pytest.mark.parametrize("num_finished", [MAX_FINISHED, MAX_FINISHED + 1])
def test_many_finished_extensions_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], num_finished: int
) -> None:
    study = write_study(tmp_path / "w", step("sim", 10))
    for number in range(1, num_finished + 2):
        path, more = study.path / f"extensions/{number:03}", {"first": 10 * number, "extension": number}
        outcomes = [OK] * 9 + [OK if number > 1 else FAILED]
        add(write_study(path, step("sim", 10), **more), chunk("sim", 0, outcomes))
    assert merlin("status", study.path) == 0
    shown = capsys.readouterr().out
    assert "extensions/001  failed" in shown
    is_one_line = num_finished > MAX_FINISHED
    assert ("extensions/002  finished" in shown) == (not is_one_line)
    assert (f"{num_finished} extensions finished: 40 samples, 40 tasks ok\n" in shown) == is_one_line
    assert merlin("status", study.path, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["extensions"]) == num_finished + 1
