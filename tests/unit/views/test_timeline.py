"""The trace of a study is what Perfetto and Chrome read, and says what happened when."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from told_study import INTERRUPTED, OK, chunk, event, told_study, write

from merlin.batch.contract import Job, JobState
from merlin.batch.job_records import JobRecord, JobRecords
from merlin.execution.distributed.worker_jobs import jobs_folder
from merlin.views.timeline import write_trace
from merlin.workspace.directory import Workspace

PHASES = {"X", "M", "i", "b", "e"}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return told_study(tmp_path)


def check_format(trace: dict[str, Any]) -> None:
    """What the Trace Event Format demands of these kinds of events."""
    assert trace["displayTimeUnit"] in ("ms", "ns")
    slices = defaultdict(list)
    open_ones: dict[tuple[int, str, str], float] = {}
    for each in trace["traceEvents"]:
        assert each["ph"] in PHASES
        assert isinstance(each["name"], str)
        assert isinstance(each["pid"], int)
        if each["ph"] == "M":
            assert each["name"] in ("process_name", "thread_name")
            assert isinstance(each["args"]["name"], str)
            continue
        assert isinstance(each["ts"], float | int)
        assert isinstance(each["tid"], int)
        if each["ph"] == "X":
            assert each["dur"] >= 0
            slices[each["pid"], each["tid"]].append((each["ts"], each["ts"] + each["dur"]))
        elif each["ph"] == "i":
            assert each["s"] in ("g", "p", "t")
        elif each["ph"] == "b":
            open_ones[each["pid"], each["cat"], each["id"]] = each["ts"]
        elif each["ph"] == "e":
            assert open_ones.pop((each["pid"], each["cat"], each["id"])) <= each["ts"]
    assert not open_ones
    for spans in slices.values():  # slices of a thread must not overlap
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


def read(path: Path) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(path.read_text())
    check_format(trace)
    return trace


def named(trace: dict[str, Any], what: str) -> dict[str, tuple[int, int | None]]:
    found = (e for e in trace["traceEvents"] if e["name"] == f"{what}_name")
    return {e["args"]["name"]: (e["pid"], e.get("tid")) for e in found}


def test_hosts_are_processes_workers_threads_and_records_slices(workspace: Workspace, tmp_path: Path) -> None:
    written = write_trace(workspace, tmp_path / "t.json")
    trace = read(tmp_path / "t.json")
    assert (written.slices, written.hosts, written.workers) == (7, 2, 2)
    assert {"n1", "n2", "the study"} <= set(named(trace, "process"))
    w1 = named(trace, "thread")["w1"]
    assert w1[0] == named(trace, "process")["n2"][0]
    (only,) = [e for e in trace["traceEvents"] if e["ph"] == "X" and (e["pid"], e["tid"]) == w1]
    assert (only["name"], only["ts"], only["dur"]) == ("sim", 1_000_000, 10_000_000)
    assert only["args"] == {
        "tasks": [3, 5], "ok": 1, "failed": 0, "skipped": 0, "interrupted": 1, "attempt": 1,
    }  # fmt: skip
    assert trace["otherData"]["began"] == 1000.0


def test_events_are_instants_with_what_is_known_of_them(workspace: Workspace, tmp_path: Path) -> None:
    write(workspace, ("controller", "run2", "n1"), event("memory", 2001.0, deferred=[], deaths=[]))
    write_trace(workspace, tmp_path / "t.json")
    instants = [e for e in read(tmp_path / "t.json")["traceEvents"] if e["ph"] == "i"]
    assert [(e["name"], e["ts"]) for e in instants] == [
        ("run_started", 0.0), ("run_stopped", 20e6), ("run_started", 1000e6), ("run_finished", 1010e6),
    ]  # fmt: skip
    assert instants[1]["args"]["reason"] == "interrupted"


def test_batch_jobs_wait_and_run(workspace: Workspace, tmp_path: Path) -> None:
    records = JobRecords(jobs_folder(workspace.path))
    seen = Job(id="7", state=JobState.OK, hosts=("n1",), started=1005.0)
    for record in (
        JobRecord(name="a", scheduler="slurm", created=1000.0, id="7", seen=seen, seen_at=1020.0),
        JobRecord(name="b", scheduler="slurm", created=1001.0, refused="no such bank"),
    ):
        records.write(record)
    write_trace(workspace, tmp_path / "t.json", now=3000.0)
    jobs = [e for e in read(tmp_path / "t.json")["traceEvents"] if e.get("cat") == "job"]
    assert [(e["name"], e["ts"], e["dur"]) for e in jobs] == [
        ("waits", 0.0, 5e6), ("runs", 5e6, 15e6), ("refused", 1e6, 0.0),
    ]  # fmt: skip


def test_jobs_of_steps_on_one_machine_overlap_without_harm(workspace: Workspace, tmp_path: Path) -> None:
    for lease in ("a1.1", "a1.2"):
        record = chunk("sim", 4, [INTERRUPTED], [9.0], started=1500.0, elapsed_s=9.0)
        write(workspace, (f"step-job.{lease}", "run1", "n3"), record)
    write_trace(workspace, tmp_path / "t.json")
    found = [e for e in read(tmp_path / "t.json")["traceEvents"] if e.get("cat") == "step job"]
    assert [e["ph"] for e in found] == ["b", "e", "b", "e"]
    assert len({e["id"] for e in found}) == 2


def test_records_that_overlap_in_one_worker_are_cut(workspace: Workspace, tmp_path: Path) -> None:
    records = [chunk("sim", 0, [OK], [2.0], started=3000.0 + k, elapsed_s=2.0) for k in range(3)]
    write(workspace, ("w9", "run2", "n1"), *records)
    write_trace(workspace, tmp_path / "t.json")
    read(tmp_path / "t.json")


def test_a_name_in_gz_makes_a_compressed_trace_and_the_same_study_the_same_bytes(
    workspace: Workspace, tmp_path: Path
) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        write_trace(workspace, tmp_path / name, now=3000.0)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    check_format(json.loads(gzip.decompress((tmp_path / "a.json.gz").read_bytes())))


def test_the_memory_does_not_grow_with_the_ledger(workspace: Workspace, tmp_path: Path, monkeypatch) -> None:
    """Two thousand records, read a little at a time."""
    monkeypatch.setattr("merlin.ledger.segments.WINDOW_BYTES", 1 << 16)
    records = [chunk("sim", 0, [OK], [0.1], started=3000.0 + k, elapsed_s=0.5) for k in range(2000)]
    write(workspace, ("w9", "run2", "n1"), *records)
    tracemalloc.start()
    try:
        assert write_trace(workspace, tmp_path / "t.json").slices == 2007
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()
