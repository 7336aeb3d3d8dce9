"""How often commands that look at studies may run on a machine that computes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from merlin.cli import pacing


@pytest.fixture
def pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The waits of looks that begin at once one after the other, each of a tenth of a second on one of two cores."""
    found: list[float] = []
    clock = [time.time()]

    def sleep(seconds: float) -> None:
        found.append(seconds)
        clock[0] += seconds

    monkeypatch.delenv(pacing.SWITCH, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    monkeypatch.setattr(pacing, "_waited_for_cores", lambda: True)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: clock[0])
        patch.setattr(time, "process_time", lambda: 0.1)
        patch.setattr(time, "sleep", sleep)
        yield found


def look(times: int) -> None:
    for _ in range(times):
        with pacing.paced("status"):
            pass


def test_a_loop_of_looks_takes_a_hundredth_of_a_machine_that_computes(pauses: list[float]) -> None:
    look(7)
    assert pauses == []
    look(10)
    assert pauses == pytest.approx([5.0] * 10, abs=0.01)


def test_looks_after_a_long_time_begin_at_once(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    look(20)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 60)
    pauses.clear()
    look(6)
    assert pauses == []


def test_nobody_waits_while_a_core_is_free(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "_waited_for_cores", lambda: False)
    look(50)
    assert pauses == []


def test_nobody_waits_who_does_not_want_to(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    look(20)
    pauses.clear()
    monkeypatch.setenv(pacing.SWITCH, "1")
    look(20)
    assert pauses == []


@pytest.mark.parametrize("kind", ["a link", "a file"])
def test_what_somebody_else_put_in_place_is_not_touched(
    tmp_path: Path, pauses: list[float], kind: str
) -> None:
    place, target = tmp_path / f"merlin-looks-{os.getuid()}", tmp_path / "theirs"
    target.mkdir()
    place.symlink_to(target) if kind == "a link" else place.touch()
    before = target.stat().st_mtime
    look(50)
    assert pauses == []
    assert target.stat().st_mtime == before


def test_a_clock_that_was_set_back_delays_looks_by_five_seconds_at_most(
    tmp_path: Path, pauses: list[float]
) -> None:
    look(1)
    far = time.time() + 1e6
    os.utime(tmp_path / f"merlin-looks-{os.getuid()}", (far, far))
    look(1)
    assert pauses == [5.0]
    look(1)
    assert pauses[1] <= 5.0 + 1e-3
