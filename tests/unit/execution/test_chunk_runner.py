"""The step runner on real workspaces, with real shells and a real ledger."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_plans import step
from waiting import wait_until

from merlin.base.processes import group_members
from merlin.errors import ExecutionError, WorkspaceError
from merlin.plan.plan import Aggregate, PlannedField, StepInstance, StepKind
from merlin.plan.tasks import Outcome

OK, FAILED, INTERRUPTED = Outcome.OK, Outcome.FAILED, Outcome.INTERRUPTED


# ------------------------------------------------------------------ files and codes


def test_a_task_leaves_upstreams_files(make: Any, fresh: bool) -> None:
    bench = make(step("s", 60, command="echo $(X) $(MERLIN_SAMPLE_ID)\npwd >&2\n", fresh_shell=fresh))
    result = bench.run(0, 60)
    assert result.runs == ((0, 60, OK),)
    folder = bench.folder(26)
    assert folder == bench.workspace.path / "s/01/01"
    assert sorted(p.name for p in folder.iterdir()) == ["MERLIN_FINISHED", "s.err", "s.out", "s.sh"]
    assert (folder / "s.sh").read_text() == "#!/bin/bash\n\necho 26.0 26\npwd >&2\n\n"
    assert (folder / "s.sh").stat().st_mode & 0o777 == 0o755
    assert (folder / "s.out").read_text() == "26.0 26\n"
    assert (folder / "s.err").read_text() == f"{folder.resolve()}\n"
    assert bench.outcomes() == [(0, 60, OK)]


@pytest.mark.parametrize(
    ("code", "outcome", "cause", "stop"),
    [
        (0, OK, "", ""),
        (103, OK, "", ""),
        (105, OK, "", "stop_workers"),
        (1, FAILED, "exit code 1", ""),
        (101, Outcome.SOFT_FAILED, "soft failure (exit code 101)", ""),
        (102, FAILED, "hard failure (exit code 102)", "hard_fail"),
        (106, FAILED, "error raised by the step (exit code 106)", ""),
        (127, FAILED, "exit code 127 (command not found)", ""),
    ],
)
def test_every_exit_code_means_what_it_does_upstream(
    make: Any, fresh: bool, code: int, outcome: Outcome, cause: str, stop: str
) -> None:
    bench = make(step("s", 1, command=f"echo why >&2\nexit {code}\n", fresh_shell=fresh))
    result = bench.run(0, 1)
    assert result.runs == ((0, 1, outcome),)
    assert result.stop == stop
    assert (bench.folder(0) / "MERLIN_FINISHED").exists() is (outcome is OK)
    if cause:
        failure = bench.failures()[0]
        assert (failure.cause, failure.exit_code, failure.tail) == (cause, code, "why\n")
        assert cause in result.note


def test_tasks_that_ask_for_it_are_deferred_and_not_judged(make: Any, fresh: bool) -> None:
    command = "case $(MERLIN_SAMPLE_ID) in\n 1|3) exit 100;;\n 4) exit 104;;\nesac\n"
    bench = make(step("s", 8, command=command, restart="echo again\n", retry_delay_s=2.5, fresh_shell=fresh))
    result = bench.run(0, 8)
    assert result.runs == ((0, 1, OK), (2, 3, OK), (5, 8, OK))
    retry, restart = result.deferred
    assert (retry.chunk.task_ids(), retry.chunk.use_restart, retry.chunk.retries) == ([4], False, 1)
    assert (restart.chunk.task_ids(), restart.chunk.use_restart, restart.chunk.retries) == ([1, 3], True, 1)
    assert restart.delay_s == 2.5
    second = bench.runner.run(restart.chunk)
    assert second.runs == ((1, 2, OK), (3, 4, OK))
    assert (bench.folder(1) / "s.restart.out").read_text() == "again\n"
    assert not (bench.folder(2) / "s.restart.sh").exists()


@pytest.mark.parametrize("code", [100, 104])
def test_a_task_that_asks_too_often_has_failed_softly(make: Any, code: int) -> None:
    """What depends on it runs, as upstream's developers' workflow `restart` expects."""
    bench = make(step("s", 1, command=f"exit {code}", max_retries=2))
    result = bench.run(0, 1, retries=2)
    assert result.runs == ((0, 1, Outcome.SOFT_FAILED),)
    assert "max_retries is 2" in bench.failures()[0].cause


def test_a_shell_killed_by_a_signal_is_a_failure_with_its_name(make: Any, fresh: bool) -> None:
    bench = make(
        step("s", 3, command="[ $(MERLIN_SAMPLE_ID) = 1 ] && kill -9 0\nexit 0\n", fresh_shell=fresh)
    )
    assert bench.run(0, 3).runs == ((0, 1, OK), (1, 2, FAILED), (2, 3, OK))
    assert (bench.failures()[1].cause, bench.failures()[1].exit_code) == ("killed by SIGKILL", -9)


def test_a_task_that_kills_the_warm_shell_costs_only_itself(make: Any, tmp_path: Path) -> None:
    killer = tmp_path / "killer.py"
    killer.write_text(
        "import os\n"
        "shell = int(open(f'/proc/{os.getppid()}/stat').read().split()[3])\n"
        "assert b'set -m' in open(f'/proc/{shell}/cmdline', 'rb').read()\n"
        "os.kill(shell, 9)\n"
    )
    bench = make(step("s", 5, command=f"[ $(MERLIN_SAMPLE_ID) = 2 ] && {sys.executable} {killer}\nexit 0\n"))
    assert bench.run(0, 5).runs == ((0, 2, OK), (2, 3, FAILED), (3, 5, OK))
    assert bench.failures()[2].cause == "killed by SIGKILL"


def test_another_language_runs_its_scripts(make: Any) -> None:
    python = f"/usr/bin/env {sys.executable}"
    bench = make(step("s", 2, command="import os\nprint($(X) + 1, os.getcwd())", shell=python))
    assert bench.run(0, 2).runs == ((0, 2, OK),)
    assert (bench.folder(1) / "s.out").read_text() == f"2.0 {bench.folder(1).resolve()}\n"


@pytest.mark.parametrize("shell", ["/nowhere/bash", "no-such-shell -e"])
def test_a_shell_that_does_not_exist_fails_the_task_and_says_so(make: Any, shell: str) -> None:
    bench = make(step("s", 1, command="exit 0", shell=shell))
    assert bench.run(0, 1).runs == ((0, 1, FAILED),)
    assert bench.failures()[0].cause == f"shell not found: {shell}"
    assert bench.failures()[0].exit_code == 127


def test_the_environment_of_the_worker_reaches_tasks(
    make: Any, fresh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_OUTSIDE", "seen")
    bench = make(step("s", 1, command="echo $FROM_OUTSIDE", fresh_shell=fresh))
    bench.run(0, 1)
    assert (bench.folder(0) / "s.out").read_text() == "seen\n"


def test_no_descriptor_of_the_worker_reaches_a_task(make: Any, fresh: bool) -> None:
    bench = make(step("s", 1, command="ls /proc/self/fd | tr '\\n' ' '\n", fresh_shell=fresh))
    leak = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leak, True)
    bench.run(0, 1)
    os.close(leak)
    assert (bench.folder(0) / "s.out").read_text() == "0 1 2 3 "


# ------------------------------------------------------------------ not twice, not lost


def test_holes_are_left_alone(make: Any, fresh: bool) -> None:
    bench = make(step("s", 6, command="exit 0", fresh_shell=fresh))
    assert bench.run(0, 6, holes=((1, 3), (4, 5))).runs == ((0, 1, OK), (3, 4, OK), (5, 6, OK))
    assert not bench.folder(1).exists()


def test_the_rest_of_a_chunk_does_not_run_after_a_hard_failure(make: Any) -> None:
    bench = make(
        step("s", 50, command="[ $(MERLIN_SAMPLE_ID) = 3 ] && exit 102\nsleep 0.01\n", fresh_shell=True)
    )
    result = bench.run(0, 50)
    assert result.stop == "hard_fail"
    assert result.runs == ((0, 3, OK), (3, 4, FAILED))


def test_a_file_in_the_way_fails_only_its_task(make: Any, fresh: bool) -> None:
    bench = make(step("s", 4, command="exit 0", fresh_shell=fresh))
    (bench.workspace.path / "s").mkdir()
    (bench.workspace.path / "s/02").write_text("")
    assert bench.run(0, 4).runs == ((0, 2, OK), (2, 3, FAILED), (3, 4, OK))
    assert "cannot prepare its files" in bench.failures()[2].cause


def test_nothing_is_recorded_once_the_workspace_is_gone(make: Any) -> None:
    bench = make(step("s", 1, command="exit 1"))
    bench.workspace.plan_path.unlink()
    with pytest.raises(WorkspaceError, match="was removed or moved while its study ran"):
        bench.run(0, 1)
    assert bench.outcomes() == [(0, 1, 255)]


def test_a_full_disk_stops_the_work_and_loses_nothing(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from merlin.execution import shell_batches

    written = shell_batches.write_script

    def full(script: Any, stem: str) -> None:
        if script.task == 5:
            raise OSError(28, "No space left on device", script.directory)
        written(script, stem)

    bench = make(step("s", 9, command="exit 0"))
    monkeypatch.setattr(shell_batches, "write_script", full)
    with pytest.raises(ExecutionError, match="the disk is full"):
        bench.run(0, 9)
    assert bench.outcomes() == [(0, 5, OK), (5, 9, 255)]


# ------------------------------------------------------------------ time and interruption


def test_a_task_out_of_time_is_killed_with_its_children(make: Any, fresh: bool) -> None:
    command = (
        "[ $(MERLIN_SAMPLE_ID) = 1 ] || exit 0\nsleep 300 &\n"
        "read -r pid name state parent group rest < /proc/self/stat\necho $group\nwait\n"
    )
    # the others have the same time, and on a busy machine even a shell that does nothing needs some
    bench = make(step("s", 3, command=command, timeout_s=5.0, fresh_shell=fresh))
    assert bench.run(0, 3).runs == ((0, 1, OK), (1, 2, FAILED), (2, 3, OK))
    assert bench.failures()[1].cause == "timeout after 5 s"
    assert group_members(int((bench.folder(1) / "s.out").read_text())) == []


def test_a_task_that_ignores_sigterm_is_killed_all_the_same(make: Any, fresh: bool) -> None:
    command = "trap '' TERM\nsleep 300 & wait\nsleep 300\n"
    bench = make(step("s", 1, command=command, timeout_s=0.2, fresh_shell=fresh))
    assert bench.run(0, 1).runs == ((0, 1, FAILED),)


class Stop:
    """The controller's wish to stop: a flag and a descriptor that wakes the runner."""

    def __init__(self) -> None:
        self.wanted = False
        self.wake_fd, self._sender = os.pipe()

    def __call__(self) -> bool:
        return self.wanted

    def now(self) -> None:
        self.wanted = True
        self.knock()

    def knock(self) -> None:
        os.write(self._sender, b"x")


def test_a_wish_to_stop_ends_the_running_task_at_once(make: Any, fresh: bool) -> None:
    stop = Stop()
    tell = "python3 -c 'import os; print(os.getpgid(0), flush=True)'"
    command = f"[ $(MERLIN_SAMPLE_ID) = 1 ] || exit 0\n{tell}\nsleep 300\n"
    instance = step("s", 4, command=command, fresh_shell=fresh)
    bench = make(instance, should_stop=stop, wake_fd=stop.wake_fd)
    out = bench.folder(1) / "s.out"

    def later() -> None:
        wait_until(lambda: out.exists() and out.read_text(), lambda: "task 1 has not begun")
        stop.now()

    threading.Thread(target=later).start()
    assert bench.run(0, 4).runs == ((0, 1, OK), (1, 2, INTERRUPTED))
    assert group_members(int(out.read_text())) == []
    assert not bench.folder(3).joinpath("MERLIN_FINISHED").exists()


def test_a_wake_up_without_a_wish_to_stop_changes_nothing(make: Any, fresh: bool) -> None:
    stop = Stop()
    stop.knock()
    bench = make(
        step("s", 3, command="sleep 0.05", fresh_shell=fresh), should_stop=stop, wake_fd=stop.wake_fd
    )
    assert bench.run(0, 3).runs == ((0, 3, OK),)


# ------------------------------------------------------------------ data sets


def aggregate_of(source: str, *fields: PlannedField) -> StepInstance:
    block = Aggregate(sources=(source,), fields=fields, samples_per_shard=10)
    return StepInstance(
        id="a", step="a", kind=StepKind.AGGREGATE, num_tasks=1, per_sample=False, aggregate=block
    )


def test_a_bad_output_file_fails_its_task_before_the_ledger_says_ok(make: Any) -> None:
    command = "[ $(MERLIN_SAMPLE_ID) = 2 ] && exit 0\necho '{\"y\": $(X)}' > out.json\n"
    source = step("s", 4, command=command, feeds=("a",))
    bench = make(source, aggregate_of("s", PlannedField(name="y", file="out.json", key="y")))
    assert bench.run(0, 4).runs == ((0, 2, OK), (2, 3, FAILED), (3, 4, OK))
    assert bench.outcomes() == [(0, 2, OK), (2, 3, FAILED), (3, 4, OK)]
    assert "y" in bench.failures()[2].cause
    assert not (bench.folder(2) / "MERLIN_FINISHED").exists()
    shard = bench.run(0, 1, "a", absent_rows=((2, 3),))
    assert shard.runs == ((0, 1, OK),)
    assert (bench.workspace.path / "a/shard_00000.h5").exists()


def test_a_shard_whose_rows_are_nowhere_has_failed(make: Any) -> None:
    source = step("s", 4, kind=StepKind.FUNCTION, function="nowhere:f", feeds=("a",))
    bench = make(source, aggregate_of("s", PlannedField(name="y", output="y")))
    assert bench.run(0, 1, "a").runs == ((0, 1, FAILED),)
    assert bench.failures()[0].cause


def test_progress_counts_what_has_ended_and_failed(make: Any) -> None:
    seen: list[tuple[int, int]] = []
    bench = make(
        step("s", 5, command="[ $(MERLIN_SAMPLE_ID) != 3 ]"), on_progress=lambda a, b: seen.append((a, b))
    )
    bench.run(0, 5)
    assert seen[-1] == (5, 1)


def test_many_short_tasks_end_in_more_than_one_batch(make: Any) -> None:
    bench = make(step("s", 700, command="exit 0\n"))
    assert bench.run(0, 700).runs == ((0, 700, OK),)
    assert sum(1 for _ in bench.workspace.path.glob("s/*/*/*/MERLIN_FINISHED")) == 700


def test_text_samples_that_are_not_plain_words_run_fresh(make: Any) -> None:
    bench = make(step("s", 3, command="echo $(X)\n"))
    values = np.array([["plain"], ["$(echo $$ | wc -l)"], ["a;pwd"]])
    np.save(bench.workspace.path / "merlin_info/samples.npy", values)
    assert bench.run(0, 3).runs == ((0, 3, OK),)
    outs = [(bench.folder(i) / "s.out").read_text() for i in range(3)]
    assert outs == ["plain\n", "1\n", f"a\n{bench.folder(2).resolve()}\n"]


# ------------------------------------------------------------------ errors of our own


def collecting_fails_for(monkeypatch: pytest.MonkeyPatch, *tasks: int) -> None:
    """The collector has a bug that these tasks' outputs meet."""
    from merlin.shards.writing import collect

    real = collect.collect_chunk

    def broken(request: Any) -> dict[int, str]:
        if any(request.ok[task - request.lo] for task in tasks if request.lo <= task < request.hi):
            raise TypeError("nobody thought of this")
        return real(request)

    monkeypatch.setattr(collect, "collect_chunk", broken)


@pytest.mark.parametrize("num_bad", [1, 6])
def test_a_bug_of_ours_fails_the_tasks_that_meet_it_and_no_others(
    make: Any, fresh: bool, monkeypatch: pytest.MonkeyPatch, num_bad: int, capfd: pytest.CaptureFixture[str]
) -> None:
    command = "echo x >> ran\necho '{\"y\": $(X)}' > out.json\n"
    source = step("s", 6, command=command, feeds=("a",), fresh_shell=fresh)
    bench = make(source, aggregate_of("s", PlannedField(name="y", file="out.json", key="y")))
    collecting_fails_for(monkeypatch, *(range(6) if num_bad == 6 else [2]))
    result = bench.run(0, 6)
    expected = ((0, 2, OK), (2, 3, FAILED), (3, 6, OK)) if num_bad == 1 else ((0, 6, FAILED),)
    assert tuple(bench.outcomes()) == expected
    assert sum(hi - lo for lo, hi, _ in result.runs) == 6
    assert "internal error: TypeError: nobody thought of this" in result.note
    failure = bench.failures()[2]
    assert failure.cause == "internal error: TypeError: nobody thought of this"
    assert "Traceback" in failure.tail and "in broken" in failure.tail
    assert "in broken" in capfd.readouterr().err
    assert not (bench.folder(2) / "MERLIN_FINISHED").exists()
    assert [(bench.folder(i) / "ran").read_text() for i in range(6)] == ["x\n"] * 6


def test_a_bug_of_ours_does_not_run_again_what_waits_for_its_next_try(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "echo x >> ran\n[ $(MERLIN_SAMPLE_ID) != 1 ] || exit 104\necho '{\"y\": $(X)}' > out.json\n"
    source = step("s", 4, command=command, feeds=("a",), max_retries=3)
    bench = make(source, aggregate_of("s", PlannedField(name="y", file="out.json", key="y")))
    collecting_fails_for(monkeypatch, 2)
    result = bench.run(0, 4)
    assert [d.chunk.task_ids() for d in result.deferred] == [[1]]
    assert bench.outcomes() == [(0, 1, OK), (1, 2, 255), (2, 3, FAILED), (3, 4, OK)]
    assert (bench.folder(1) / "ran").read_text() == "x\n"


def test_a_bug_of_ours_in_writing_a_shard_fails_that_shard(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from merlin.shards.writing import gather

    source = step("s", 4, command="echo '{\"y\": $(X)}' > out.json\n", feeds=("a",))
    bench = make(source, aggregate_of("s", PlannedField(name="y", file="out.json", key="y")))
    bench.run(0, 4)
    monkeypatch.setattr(gather, "write_shard", lambda *_: [][0])
    assert bench.run(0, 1, "a").runs == ((0, 1, FAILED),)
    assert "internal error: IndexError" in bench.failures()[0].cause


@pytest.mark.parametrize("error", [MemoryError(), ImportError("no h5py here")])
def test_an_error_that_is_no_tasks_fault_fails_no_task(
    make: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    from merlin.shards.writing import collect

    def broken(_: Any) -> None:
        raise error

    source = step("s", 4, command="echo '{\"y\": $(X)}' > out.json\n", feeds=("a",))
    bench = make(source, aggregate_of("s", PlannedField(name="y", file="out.json", key="y")))
    monkeypatch.setattr(collect, "collect_chunk", broken)
    with pytest.raises(type(error)):
        bench.run(0, 4)
    assert bench.outcomes() == [(0, 4, 255)]
