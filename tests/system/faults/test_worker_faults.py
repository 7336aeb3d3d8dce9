"""Workers are killed, stopped and told to leave while they run a study."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from commands import before_ours
from installation import Installation, installation
from lines_study import LinesStudy
from msgspec.structs import replace
from servers import RedisServer
from waiting import wait_until

from merlin.plan.plan_io import write_plan

pytestmark = pytest.mark.slow
VARIABLES = ("N=60", "SLEEP=0.02", "SHARD=30")


@pytest.fixture
def home(tmp_path: Path, own_redis: RedisServer) -> Iterator[Installation]:
    with installation(tmp_path, own_redis) as made:
        yield made


def begun(home: Installation, *, num_workers: int = 2) -> LinesStudy:
    """A published study of which some tasks have ended, and all workers run others, until it is let go."""
    study = LinesStudy.publish(home, *VARIABLES, held=True)
    home.replace_workers(study.spec, num_workers)
    study.wait_for(40)
    wait_until(lambda: all(worker.children() for worker in home.workers), study.show)
    return study


def test_an_undisturbed_study_runs_every_task_once(tmp_path: Path, own_redis: RedisServer) -> None:
    # no lease runs out, however slow the machine is
    with installation(tmp_path, own_redis, lease_s=60.0) as home:
        study = begun(home)
        study.let_go()
        study.wait_for_end()
        assert study.check().num_again == 0
        home.stop_workers()


def test_a_killed_worker_process_is_replaced(home: Installation) -> None:
    study = begun(home)
    for pid in home.workers[0].children():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    study.let_go()
    study.wait_for_end()
    study.check()
    home.stop_workers()


def test_a_plan_that_was_altered_is_not_run_and_costs_no_worker(home: Installation) -> None:
    study = begun(home)
    plan, pwned = study.workspace.plan, home.folder / "pwned"
    altered = tuple(replace(i, command=f"touch {pwned}") if i.command else i for i in plan.instances)
    write_plan(study.workspace.plan_path, replace(plan, instances=altered))
    for worker in home.workers:
        for pid in worker.children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    report = json.loads(
        home.merlin("monitor", study.workspace.path, "--sleep", "0.2", "--json", code=1).stdout
    )
    assert "it was altered, and nothing of it is run" in report["stop_reason"]
    assert not pwned.exists() and all(worker.is_alive for worker in home.workers)
    write_plan(study.workspace.plan_path, plan)
    home.restart(study.workspace.path)
    study.let_go()
    study.wait_for_end()
    study.check()
    home.stop_workers()


@pytest.mark.parametrize("whole", [False, True], ids=["the process", "the machine"])
def test_the_others_take_over_from_a_killed_worker(home: Installation, whole: bool) -> None:
    study = begun(home)
    home.workers.pop(0).kill(whole=whole)
    study.let_go()
    study.wait_for_end()
    study.check()
    home.stop_workers()


def test_new_workers_go_on_where_all_were_killed(home: Installation) -> None:
    study = begun(home)
    for worker in home.workers:
        worker.kill(whole=True)
    ended = study.num_ended
    assert ended < study.planned
    study.let_go()
    home.replace_workers(study.spec, 2)
    study.wait_for_end()
    study.check()
    home.stop_workers()


@pytest.mark.parametrize("whole", [False, True], ids=["alone", "with its processes"])
def test_a_worker_stopped_for_longer_than_its_lease_commits_nothing_afterwards(
    home: Installation, whole: bool
) -> None:
    study = begun(home)
    stopped = home.workers[0]
    stopped.freeze(whole=whole)
    study.let_go()
    study.wait_for_end()  # the other worker takes over what the lease no longer holds
    stopped.thaw()
    wait_until(lambda: not stopped.is_busy, study.show)
    study.check()
    assert stopped.is_alive
    home.stop_workers()


def test_a_worker_told_to_leave_gives_back_what_it_has_not_run(home: Installation) -> None:
    study = begun(home)
    study.let_go()
    assert home.workers.pop(0).terminate() == 0
    study.wait_for_end()
    study.check()
    home.stop_workers()


def test_the_last_worker_told_to_leave_leaves_a_study_that_can_go_on(home: Installation) -> None:
    home.env["MERLIN_STOP_GRACE_S"] = "1"
    study = begun(home, num_workers=1)
    assert home.workers.pop().terminate() == 0
    assert study.num_ended < study.planned
    wait_until(lambda: not home.processes(), home.processes)
    study.let_go()
    home.replace_workers(study.spec, 1)
    study.wait_for_end()
    study.check()
    home.stop_workers()


BUG = """
import merlin.shards.writing.collect as collect
def broken(*_):
    raise TypeError("nobody thought of this")
collect.collect_chunk = broken
"""


def test_a_bug_of_ours_fails_tasks_and_does_not_cost_worker_after_worker(
    tmp_path: Path, any_redis: RedisServer
) -> None:
    (tmp_path / "bug").mkdir()
    (tmp_path / "bug/sitecustomize.py").write_text(BUG)
    with installation(tmp_path, any_redis) as home:
        study = LinesStudy.publish(home, "N=200", "SLEEP=0", "SHARD=100")
        worker = home.start_worker(study.spec, PYTHONPATH=before_ours(tmp_path / "bug"))
        path = study.workspace.path
        report = json.loads(home.merlin("monitor", path, "--sleep", "0.2", "--json", code=1).stdout)
        assert "canary" in report["stop_reason"]
        assert "internal error: TypeError: nobody thought of this" in report["stop_reason"]
        assert 10 <= study.counts()["copy"]["failed"] < 200
        assert worker.is_alive
        assert (
            len(list((path / "merlin_info/logs").glob("*.err"))) <= 2 * 2
        )  # one for each slot, and perhaps again
        assert "in broken" in home.merlin("failures", path).stdout
        home.stop_workers()
