from __future__ import annotations

import subprocess
import sys

from status_study import OK, add, chunk, fill, make_workspace

from merlin.ledger.records import EventRecord, RangeRecord
from merlin.status.live import is_live
from merlin.status.snapshot import take_snapshot
from merlin.workspace.holding import lock


def test_planned_is_the_sum_of_ok_failed_skipped_and_missing(tmp_path):
    workspace = make_workspace(tmp_path / "w")
    fill(workspace)
    snapshot = take_snapshot(workspace)
    found = {s.step: (s.instances, s.planned, s.ok, s.failed, s.skipped, s.missing) for s in snapshot.steps}
    assert found == {"sim": (2, 40, 27, 3, 0, 10), "post": (1, 20, 0, 1, 5, 14), "end": (1, 1, 0, 0, 0, 1)}
    totals = snapshot.totals
    assert totals.planned == 61 == totals.ok + totals.failed + totals.skipped + totals.missing


def test_a_stopped_study_says_why_and_when(tmp_path):
    workspace = make_workspace(tmp_path / "w")
    fill(workspace)
    snapshot = take_snapshot(workspace)
    assert (snapshot.state, snapshot.stop_reason) == ("stopped", "interrupted")
    assert (snapshot.started, snapshot.ended, snapshot.elapsed_s) == (999.0, 1020.0, 21.0)
    assert (snapshot.num_workers, snapshot.eta) == (0, None)
    sim = snapshot.steps[0]
    assert (sim.busy_s, sim.started, sim.ended, sim.rate) == (20.0, 1000.0, 1015.0, 2.0)


def test_a_study_that_was_never_run_is_new(tmp_path):
    snapshot = take_snapshot(make_workspace(tmp_path / "w"))
    assert (snapshot.state, snapshot.totals.missing, snapshot.started) == ("new", 61, None)


def test_a_run_that_left_no_word_was_killed(tmp_path):
    workspace = make_workspace(tmp_path / "w")
    add(workspace, EventRecord(kind="run_started", data={"workers": 2}, time=999.0))
    snapshot = take_snapshot(workspace)
    assert (snapshot.state, snapshot.stop_reason) == ("stopped", "killed")


def test_a_study_is_finished_when_all_is_ok_and_failed_when_all_has_ended_otherwise(tmp_path):
    workspace = make_workspace(tmp_path / "w")
    for instance in workspace.plan.instances:
        add(workspace, RangeRecord(instance=instance.id, lo=0, hi=instance.num_tasks, outcome=OK))
    assert take_snapshot(workspace).state == "finished"
    add(workspace, RangeRecord(instance="end", lo=0, hi=1, outcome=1, attempt=2))
    assert take_snapshot(workspace).state == "failed"


def test_a_live_run_is_seen_by_its_lock_with_workers_and_eta(tmp_path):
    workspace = make_workspace(tmp_path / "w")
    add(workspace, EventRecord(kind="run_started", data={"workers": 2}, time=999.0), worker="controller")
    add(workspace, chunk("sim/P.1", 0, [OK] * 20))
    assert not is_live(workspace)
    with lock(workspace):
        assert is_live(workspace)
        snapshot = take_snapshot(workspace, now=1020.0)
    assert not is_live(workspace)
    assert (snapshot.state, snapshot.num_workers, snapshot.elapsed_s) == ("running", 2, 21.0)
    sim = snapshot.steps[0]
    assert (sim.running, sim.rate) == (1, 1.0)
    assert sim.eta is not None
    # 20 missing, half a second each; half a worker was busy in the last 20 seconds, and there are two
    assert sim.eta.low_s < 5 < sim.eta.mid_s == 20 < sim.eta.high_s
    assert snapshot.eta is not None
    assert snapshot.eta.without == ("post", "end")


def test_damage_in_the_ledger_is_reported_and_the_rest_is_counted(tmp_path):
    workspace = make_workspace(tmp_path / "w")
    add(workspace, *[chunk("post", lo, [OK] * 4) for lo in (0, 4, 8)])
    (path,) = workspace.ledger_dir.iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 2 + 60] ^= 1
    path.write_bytes(data)
    snapshot = take_snapshot(workspace)
    assert snapshot.totals.ok == 8
    assert str(path) in snapshot.damage[0]


def test_the_snapshot_loads_neither_duckdb_nor_hdf5_nor_pydantic(tmp_path):
    workspace = make_workspace(tmp_path / "w")
    fill(workspace)
    code = (
        "import sys; from merlin.workspace.directory import open_workspace;"
        "from merlin.status.snapshot import take_snapshot; take_snapshot(open_workspace(sys.argv[1]));"
        "print(*{'duckdb', 'h5py', 'scipy', 'pydantic', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, workspace.path], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
