"""How often commands that look at studies may run on a machine that computes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from merlin.cli import pacing


class Clock:
    """A time that passes in sleeps alone."""

    def __init__(self) -> None:
        self.now = time.time()
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Looks begin at once one after the other; each takes 0.1 s on one of two cores, which others need."""
    found = Clock()
    monkeypatch.delenv(pacing.SWITCH, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    monkeypatch.setattr(pacing, "_waited_for_cores", lambda: True)
    monkeypatch.setattr(time, "time", lambda: found.now)
    monkeypatch.setattr(time, "process_time", lambda: 0.1)
    monkeypatch.setattr(time, "sleep", found.sleep)
    return found


def look(times: int) -> None:
    for _ in range(times):
        with pacing.paced("status"):
            pass


def test_a_loop_of_looks_takes_a_hundredth_of_a_machine_that_computes(clock: Clock) -> None:
    look(7)
    assert clock.pauses == []
    look(10)
    assert clock.pauses == pytest.approx([5.0] * 10, abs=0.01)


def test_looks_after_a_long_time_begin_at_once(clock: Clock) -> None:
    look(20)
    clock.now += 60
    clock.pauses.clear()
    look(6)
    assert clock.pauses == []


def test_nobody_waits_while_a_core_is_free(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "_waited_for_cores", lambda: False)
    look(50)
    assert clock.pauses == []


def test_nobody_waits_who_does_not_want_to(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    look(20)
    clock.pauses.clear()
    monkeypatch.setenv(pacing.SWITCH, "1")
    look(20)
    assert clock.pauses == []


@pytest.mark.parametrize("kind", ["a link", "a file"])
def test_what_somebody_else_put_in_place_is_not_touched(tmp_path: Path, clock: Clock, kind: str) -> None:
    place, target = tmp_path / f"merlin-looks-{os.getuid()}", tmp_path / "theirs"
    target.mkdir()
    place.symlink_to(target) if kind == "a link" else place.touch()
    before = target.stat().st_mtime
    look(50)
    assert clock.pauses == []
    assert target.stat().st_mtime == before


def test_a_clock_that_was_set_back_delays_looks_by_five_seconds_at_most(tmp_path: Path, clock: Clock) -> None:
    look(1)
    far = time.time() + 1e6
    os.utime(tmp_path / f"merlin-looks-{os.getuid()}", (far, far))
    look(1)
    assert clock.pauses == [5.0]
    look(1)
    assert clock.pauses[1] <= 5.0 + 1e-3
