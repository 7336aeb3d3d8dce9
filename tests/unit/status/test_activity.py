"""A study is called running only where somebody works on it, or would at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
from status_study import OK, SKIPPED, add, chunk, make_workspace
from waiting import wait_until

from merlin.api.left_to_run import refuse_running
from merlin.errors import WorkspaceError
from merlin.ledger.records import EventRecord
from merlin.status.activity import Holder, LiveWorkers, of_holder, of_silence, of_workers
from merlin.status.live import holder_of, is_held, is_live
from merlin.status.run_events import EXECUTOR
from merlin.status.snapshot import State, local_activity, read_facts, snapshot_of, take_snapshot
from merlin.status.startable import startable_queues
from merlin.views.live import published_members
from merlin.workspace.directory import Workspace

START = "merlin run-workers W"
ELSEWHERE = Holder(pid=12, host="node7", is_here=False)


def workers(**more: object) -> LiveWorkers:
    fields = {"num_slots": 4, "running": {}, "num_workers": 2, "num_open_queues": 1, **more}
    return LiveWorkers(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "num_jobs", "state", "words"),
    [
        (workers(num_workers=0, idle_queues=("hot",)), 0, "stalled", "no worker serves queue hot; start some: merlin"),
        (None, 0, "none", ""),
        (workers(), 0, "running", ""),
        (workers(num_workers=0), 0, "stalled", "no worker serves its queues; start some: merlin run-workers W"),
        (workers(num_workers=0, num_ending=1), 0, "stalled", "1 worker of its queues is ending"),
        (workers(num_workers=0, running={"sim": 1}), 0, "running", ""),
        (workers(num_workers=0), 3, "running", ""),
        (workers(idle_queues=("hot",)), 0, "stalled", "no worker serves queue hot; 2 workers on others"),
        (workers(idle_queues=("hot",), num_open_queues=2), 0, "running", ""),
        (workers(idle_queues=("hot",), running={"sim": 1}), 0, "running", ""),
        (workers(waiting=("step sim needs 1:00:00",)), 0, "stalled", "step sim needs 1:00:00"),
    ],
)  # fmt: skip
def test_a_published_study_runs_if_somebody_works_on_it_or_could(
    found: LiveWorkers | None, num_jobs: int, state: str, words: str
) -> None:
    activity = of_workers(found, num_jobs, START)
    assert activity.state == state
    assert words in activity.reason
    assert bool(activity.reason) == (state == "stalled")


def test_servers_that_cannot_be_asked_leave_it_open() -> None:
    activity = of_silence(RuntimeError("Redis at host:6379 does not answer"))
    assert activity.state == "unknown"
    assert "host:6379" in activity.reason


@pytest.mark.parametrize(
    ("last_sign", "longest_s", "state"),
    [(990.0, 0.0, "running"), (500.0, 0.0, "unknown"), (500.0, 200.0, "running"), (None, 0.0, "unknown")],
)
def test_a_run_on_another_machine_is_believed_as_long_as_it_writes(
    last_sign: float | None, longest_s: float, state: str
) -> None:
    found = of_holder(ELSEWHERE, last_sign=last_sign, longest_s=longest_s, now=1000.0)
    assert found.state == state
    assert ("ssh node7 ps -p 12" in found.reason) == (state == "unknown")


def test_what_is_stalled_or_unknown_is_told_with_its_reason_as_long_as_tasks_are_missing(
    tmp_path: Path,
) -> None:
    workspace = make_workspace(tmp_path / "w")
    facts = read_facts(workspace)

    def seen(activity: object) -> tuple[State, str]:
        snapshot = snapshot_of(workspace, facts, activity, 1000.0)  # type: ignore[arg-type]
        return snapshot.state, snapshot.state_reason

    assert seen(of_workers(workers(num_workers=0), 0, START))[0] == "stalled"
    assert seen(of_silence(RuntimeError("gone"))) == ("unknown", "what runs now is not known: gone")
    for instance in workspace.plan.instances:
        add(workspace, chunk(instance.id, 0, [OK] * instance.num_tasks))
    facts = read_facts(workspace)
    assert seen(of_silence(RuntimeError("gone"))) == ("finished", "")


@pytest.fixture
def held(tmp_path: Path) -> tuple[Workspace, int]:
    """A workspace that another process holds, and the id of that process."""
    workspace = make_workspace(tmp_path / "w")
    add(workspace, EventRecord(kind="run_started", data={"workers": 2}, time=999.0), worker="controller")
    script = (
        "import sys; from merlin.workspace.directory import open_workspace; from merlin.workspace.holding import lock\n"
        "with lock(open_workspace(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, workspace.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield workspace, process.pid
        process.kill()


def test_a_suspended_run_is_stalled_and_a_killed_one_has_stopped(held: tuple[Workspace, int]) -> None:
    workspace, pid = held
    assert take_snapshot(workspace).state == "running"
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: (found := holder_of(workspace)) and found.is_suspended, lambda: "it still runs")
    snapshot = take_snapshot(workspace)
    assert (snapshot.state, snapshot.eta, snapshot.num_workers) == ("stalled", None, 0)
    assert f"kill -CONT {pid}" in snapshot.state_reason
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: holder_of(workspace) is None, lambda: "it is still there")
    assert (take_snapshot(workspace).state, take_snapshot(workspace).stop_reason) == ("stopped", "killed")


def test_a_finished_run_of_another_machine_is_over_although_its_name_is_left_in_the_lock(
    tmp_path: Path,
) -> None:
    workspace = make_workspace(tmp_path / "w")
    (workspace.info / "lock").write_text("pid 12 on node7\n")
    add(workspace, EventRecord(kind="run_started", data={"workers": 2}, time=999.0), worker="controller")
    now = (workspace.info / "lock").stat().st_mtime
    assert local_activity(workspace, read_facts(workspace), now + 1).state == "running"
    assert local_activity(workspace, read_facts(workspace), now + 1000).state == "unknown"
    add(workspace, EventRecord(kind="run_stopped", data={"reason": "interrupted"}, time=1020.0))
    assert local_activity(workspace, read_facts(workspace), now + 1).state == "none"


@pytest.mark.parametrize(
    ("events", "is_run"),
    [
        ([], False),
        ([("run_started", {"workers": 2})], True),
        ([("run_started", {"workers": 2}), ("run_failed", {"reason": "x"})], False),
        ([("run_started", {"executor": EXECUTOR})], False),
    ],
)
def test_a_name_of_another_machine_in_the_lock_counts_only_while_a_command_runs_the_study_by_the_ledger(
    tmp_path: Path, events: list[tuple[str, dict[str, object]]], is_run: bool
) -> None:
    workspace = make_workspace(tmp_path / "w")
    (workspace.info / "lock").write_text("pid 12 on node7\n")
    for kind, data in events:
        add(workspace, EventRecord(kind=kind, data=data, time=999.0), worker="controller")
    facts, now = read_facts(workspace), (workspace.info / "lock").stat().st_mtime
    assert is_live(workspace) == is_run
    assert holder_of(workspace, facts) == (ELSEWHERE if is_run else None)
    assert local_activity(workspace, facts, now).state == ("running" if is_run else "none")
    assert not is_held(workspace.path), "what it writes shows that it runs"
    for may_change in (partial(refuse_running, [workspace]), partial(published_members, workspace)):
        with pytest.raises(WorkspaceError, match="process 12 on node7") if is_run else nullcontext():
            may_change()


def test_a_queue_is_open_if_a_task_on_it_could_run(tmp_path: Path) -> None:
    from msgspec.structs import replace

    from merlin.plan.plan import Edge

    made = make_workspace(tmp_path / "w").plan
    first, _, post, end = made.instances
    post = replace(post, edges=(Edge(source=first.id, kind="same", group="sim"),), queue="cool")
    end = replace(end, edges=(Edge(source="post", kind="all", group="post"),), queue="last")
    plan = replace(made, instances=(first, post, end))

    def opened(*ended: dict[int, int]) -> tuple[str, ...]:
        return startable_queues(plan, dict(zip(("sim/P.1", "post", "end"), ended, strict=True)))

    assert opened({}, {}, {}) == ("hot",)
    assert opened({OK: 5}, {}, {}) == ("hot", "cool")
    assert opened({OK: 5}, {OK: 3, SKIPPED: 2}, {}) == ("hot",)
    assert opened({OK: 20}, {OK: 19}, {}) == ("cool",)
    assert opened({OK: 20}, {OK: 20}, {}) == ("last",)
    assert opened({OK: 20}, {OK: 20}, {OK: 1}) == ()
