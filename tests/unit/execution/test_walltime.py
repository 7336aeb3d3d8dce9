"""The end of an allocation: what starts before it, what is interrupted, and what a task's death then means."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from small_plans import step
from study_on_disk import end_of, make_workspace, processes_of, start_warm_run, workers_of
from waiting import wait_until

from merlin.batch.here import WALLTIME_END
from merlin.execution import shell_runner
from merlin.execution.conductor import RunOptions
from merlin.execution.distributed import leaving
from merlin.execution.distributed.leaving import Leaving
from merlin.execution.embedded import run_embedded
from merlin.execution.events import Observer
from merlin.execution.walltime import MARGIN_S, Walltime, Warnings
from merlin.plan.plan import StepKind
from merlin.plan.tasks import Outcome

OK, INTERRUPTED = Outcome.OK, Outcome.INTERRUPTED


class LeftS(Walltime):
    """Has so much time left at each call; then the last of it."""

    def __init__(self, *left_s: float) -> None:
        super().__init__()
        self._each = list(left_s)

    def left_s(self) -> float:
        return self._each.pop(0) if len(self._each) > 1 else self._each[0]


def test_without_an_end_there_is_time_for_everything() -> None:
    walltime = Walltime()
    assert walltime.ends is None and walltime.has_time_for(1e12)


def test_tasks_have_the_time_until_shortly_before_the_end() -> None:
    walltime = Walltime(time.time() + 3600)
    assert walltime.has_time_for(0.0) and walltime.has_time_for(3000.0)
    assert not walltime.has_time_for(3600.0 - MARGIN_S / 2)
    assert not Walltime(time.time() + MARGIN_S / 2).has_time_for(0.0)


# ------------------------------------------------------------------------- chunks


def test_a_chunk_ends_early_when_the_next_task_would_not_end_in_time(make: Any, fresh: bool) -> None:
    bench = make(step("s", 40, command="true", fresh_shell=fresh), walltime=LeftS(1000.0, 0.0))
    result = bench.run(0, 40, need_s=400.0)
    num = 1 if fresh else 2  # of a warm shell, as many as fit one after the other
    assert result.runs == ((0, num, OK),)


def test_nothing_of_a_chunk_runs_when_the_time_is_over(make: Any, fresh: bool) -> None:
    bench = make(step("s", 9, command="touch ran", fresh_shell=fresh), walltime=LeftS(-1.0))
    assert bench.run(0, 9).runs == ()
    assert not list(bench.workspace.path.rglob("ran"))


def test_a_function_gets_the_samples_that_can_end_in_time(make: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(inputs, context): return {'y': inputs['X']}\n")
    function = step("s", 40, kind=StepKind.FUNCTION, function="mine:f")
    bench = make(function, walltime=LeftS(100.0))
    assert bench.run(0, 40, holes=((1, 3), (20, 30)), need_s=30.0).runs == ((0, 1, OK), (3, 5, OK))
    assert bench.run(5, 9, need_s=101.0).runs == ()
    assert bench.run(5, 9, need_s=25.0).runs == ((5, 9, OK),)


def test_a_result_says_how_long_its_tasks_took(make: Any, fresh: bool) -> None:
    result = make(step("s", 5, command="[ $X != 3 ] || exit 1", fresh_shell=fresh)).run(0, 5)
    assert sum(num for _, num in result.spread) == 5 and result.cut_off_s == 0.0


# ------------------------------------------------------------------ signals to a whole job


@pytest.mark.parametrize("code", ["kill -TERM $$", "kill -USR1 $$; sleep 60", "exit 3"])
def test_a_task_that_fails_after_a_warning_to_the_whole_job_runs_again(
    make: Any, fresh: bool, code: str
) -> None:
    warnings = Warnings()
    bench = make(step("s", 2, command=f"[ $(MERLIN_SAMPLE_ID) = 0 ] || {{ {code}; }}", fresh_shell=fresh))
    bench.runner._shells._warnings = warnings
    warnings._note(signal.SIGTERM, None)
    warnings._last += 3600.0
    assert bench.run(0, 2).runs == ((0, 1, OK), (1, 2, INTERRUPTED))


@pytest.mark.parametrize("ends", [True, False])
def test_a_task_that_srun_refused_in_a_job_that_ends_runs_again(
    make: Any, fresh: bool, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    """The signal reaches the job after the task has failed, if the job really ends."""
    said = "srun: error: Slurm job 8 has expired\nsrun: Check SLURM_JOB_ID environment variable. …"
    bench = make(step("s", 1, command=f"echo '{said}' >&2; exit 1", fresh_shell=fresh))
    warnings = bench.runner._shells._warnings
    monkeypatch.setattr(shell_runner, "JOB_END_S", 20.0 if ends else 0.05)
    comes = threading.Timer(0.3, warnings._note, (signal.SIGTERM, None))
    if ends:
        comes.start()
    assert bench.run(0, 1).runs == ((0, 1, INTERRUPTED if ends else Outcome.FAILED),)


def test_a_task_that_kills_itself_has_failed(make: Any, fresh: bool) -> None:
    result = make(step("s", 1, command="kill -TERM $$; sleep 60", fresh_shell=fresh)).run(0, 1)
    assert result.runs == ((0, 1, Outcome.FAILED),)


def test_tasks_that_a_signal_to_all_processes_of_a_job_has_ended_count_as_interrupted(tmp_path: Path) -> None:
    """As srun and scancel do: the command, its workers, their shells and the tasks all get it."""
    log, gate = tmp_path / "log", tmp_path / "gate"
    command = f"echo x >> {log}; [ -e {gate} ] || sleep 600"
    workspace = make_workspace(tmp_path, step("sim", 2, command=command, canary=0, max_failures=0))
    run = start_warm_run(workspace)
    wait_until(lambda: log.exists() and len(log.read_text().split()) == 2)
    assert len(workers_of(workspace)) == 2
    for pid in sorted((int(line.split()[0]) for line in processes_of(workspace)), reverse=True):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)  # the tasks first
    summary = end_of(run)
    assert (summary["stop_reason"], summary["failed"], summary["missing"]) == ("interrupted", 0, 2)
    gate.touch()
    assert run_embedded(workspace, RunOptions(workers=2), Observer()).ok == 2


# ------------------------------------------------------------------- on one machine


def test_a_run_in_an_allocation_stops_in_time_and_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    workspace = make_workspace(tmp_path, step("sim", 2, command=f"[ -e {gate} ] || sleep 600"))
    monkeypatch.setenv(WALLTIME_END, str(time.time() + MARGIN_S + 1))
    summary = run_embedded(workspace, RunOptions(workers=2), Observer())
    assert summary.stop_reason.startswith("the walltime is over") and summary.missing == 2
    assert processes_of(workspace) == []
    monkeypatch.delenv(WALLTIME_END)
    gate.touch()
    assert run_embedded(workspace, RunOptions(workers=2), Observer()).ok == 2


def test_a_run_starts_nothing_that_cannot_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = {"walltime": "5"}, {"walltime": "02:00:00"}
    workspace = make_workspace(
        tmp_path,
        step("short", 20, command="true", resources=short),
        step("long", 20, command="true", resources=long),
    )
    monkeypatch.setenv(WALLTIME_END, str(time.time() + 3600))
    summary = run_embedded(workspace, RunOptions(workers=2), Observer())
    assert (summary.ok, summary.missing) == (20, 20)
    assert "step long needs 02:00:00" in summary.stop_reason


# ------------------------------------------------------------------------- leaving


class Clock:
    """Stands in for `time` in `leaving`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.01)


class Ending(Leaving):
    def __init__(self, walltime: Walltime) -> None:
        super().__init__(walltime)
        self.has_ended = False

    def leave(self) -> None:
        pass

    def end(self) -> None:
        self.has_ended = True


def times_of_the_end(
    monkeypatch: pytest.MonkeyPatch, ends_s: float | None, *, is_warned: bool
) -> list[float]:
    """Seconds after the signal: interrupted, killed, ended; for chunks that never end."""
    clock, out = Clock(), list[float]()

    class Left(Walltime):
        def left_s(self) -> float:
            return float("inf") if ends_s is None else 100.0 + ends_s - MARGIN_S - clock.now

    monkeypatch.setattr(leaving, "time", clock)
    ending = Ending(Left())
    note = lambda: out.append(round(clock.now - 100.0))  # noqa: E731
    if is_warned:
        ending.warn()
    ending._enforce_time_limits(lambda: True, note, note)
    note()
    assert ending.has_ended
    return out


def test_chunks_get_a_grace_period_and_no_more_than_the_walltime(monkeypatch: pytest.MonkeyPatch) -> None:
    grace_s, kill_s, last_s = leaving.STOP_GRACE_S, leaving.INTERRUPT_S, leaving.LAST_S
    unlimited = [grace_s, grace_s + kill_s, grace_s + kill_s + last_s]
    assert times_of_the_end(monkeypatch, None, is_warned=False) == unlimited
    assert times_of_the_end(monkeypatch, None, is_warned=True) == unlimited
    assert times_of_the_end(monkeypatch, 8.0, is_warned=False) == [2, 5, 7]
    assert times_of_the_end(monkeypatch, -9.0, is_warned=False)[-1] <= 2


def test_after_a_warning_chunks_have_the_rest_of_the_walltime(monkeypatch: pytest.MonkeyPatch) -> None:
    assert times_of_the_end(monkeypatch, 120.0, is_warned=True) == [114, 117, 119]
    assert times_of_the_end(monkeypatch, 120.0, is_warned=False)[0] == leaving.STOP_GRACE_S


def test_a_second_signal_hurries_and_one_that_was_passed_on_twice_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(leaving, "time", clock)
    monkeypatch.setattr(leaving.threading.Thread, "start", lambda self: None)
    ending = Ending(LeftS(1000.0))
    begin = lambda: ending.begin(lambda: True, lambda: None, lambda: None)  # noqa: E731
    ending.warn()
    begin()
    begin()
    assert not ending._is_out_of_grace(clock.now)
    clock.now += leaving.AGAIN_S
    begin()
    assert ending._is_out_of_grace(clock.now)
