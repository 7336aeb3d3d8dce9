"""`kill -9` of the command or of a worker at random moments; then the study is run again to its end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from effort import repeats
from small_plans import same, step
from study_on_disk import end_of, make_workspace, processes_of, start_warm_run, workers_of
from waiting import wait_until

from merlin.ledger.replay import replay
from merlin.plan.tasks import Outcome
from merlin.workspace.directory import Workspace

NUM = 150


def num_lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def kill_something(workspace: Workspace, run: subprocess.Popen[str], rng: random.Random) -> None:
    """The command, a worker, or both."""
    victims = [*([run.pid] if run.poll() is None else []), *workers_of(workspace)]
    for pid in rng.sample(victims, k=min(len(victims), rng.choice([1, 1, 2]))):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def finished_tasks(workspace: Workspace) -> dict[str, set[int]]:
    outcomes = replay(workspace.ledger_dir, workspace.plan).outcomes
    ended = (Outcome.OK, Outcome.FAILED)
    return {id: {t for a, b in m.ranges(ended) for t in range(a, b)} for id, m in outcomes.items()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(repeats(2, 12)))
def test_every_task_is_finished_exactly_once_whatever_is_killed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    log = tmp_path / "log"
    write = f"echo $WHAT$(MERLIN_SAMPLE_ID) >> {log}"
    workspace = make_workspace(
        tmp_path,
        step("sim", NUM, command=f"WHAT=sim; {write}; test $(($(MERLIN_SAMPLE_ID) % 20)) != 7"),
        step("post", NUM, same("sim"), command=f"WHAT=post; {write}"),
    )
    for _ in range(4):
        # in this order: a worker of the run before may still be about to find out that it was killed
        finished = finished_tasks(workspace)
        before = num_lines(log)
        run = start_warm_run(workspace)
        goal = before + rng.randrange(1, 60)
        wait_until(lambda: num_lines(log) >= goal or run.poll() is not None, lambda: num_lines(log))  # noqa: B023
        kill_something(workspace, run, rng)
        if rng.random() < 0.5 and run.poll() is None:
            run.kill()
        run.communicate(timeout=120)
        ran_again = set(log.read_text().split()[before:]) & {
            f"{id}{t}" for id in finished for t in finished[id]
        }
        assert not ran_again
    summary = end_of(start_warm_run(workspace))
    num_bad = len(range(7, NUM, 20))
    assert (summary["ok"], summary["failed"]) == (2 * (NUM - num_bad), num_bad)
    assert (summary["skipped"], summary["missing"]) == (num_bad, 0)
    assert {id: len(tasks) for id, tasks in finished_tasks(workspace).items()} == {
        "sim": NUM,
        "post": NUM - num_bad,
    }
    wait_until(lambda: not processes_of(workspace), lambda: processes_of(workspace))
