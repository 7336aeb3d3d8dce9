from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process import merlin
from status_study import fill, make_workspace

from merlin.cli.outcome_bar import bar
from merlin.cli.study_status import show_advice

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
