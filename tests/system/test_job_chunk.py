"""The program in a batch job, as a process: what it writes down, and what it reports, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_plans import step
from study_on_disk import make_workspace, processes_of
from waiting import wait_until

from merlin.execution.job_folder import JobFolder, StepJob
from merlin.execution.walltime import MARGIN_S
from merlin.ledger.replay import replay
from merlin.ledger.session import next_session
from merlin.plan.plan import StepKind
from merlin.plan.reports import ChunkReport
from merlin.plan.tasks import Chunk, Outcome
from merlin.workspace.directory import Workspace

OK, FAILED, INTERRUPTED = Outcome.OK, Outcome.FAILED, Outcome.INTERRUPTED


class JobBench:
    """One job of a study."""

    def __init__(self, root: Path, **instance: Any) -> None:
        self.workspace: Workspace = make_workspace(root, step("sim", 6, **instance))
        self.folder = JobFolder(self.workspace, "abc.1")
        self.started: list[subprocess.Popen[bytes]] = []

    def submit(self, *, walltime_s: float | None = None) -> None:
        chunk = Chunk(instance="sim", lo=0, hi=4, lease="abc.1")
        session = next_session(self.workspace.ledger_dir, 1.0)
        job = StepJob(
            chunk=chunk, session=session, scheduler="slurm", name="n", walltime_s=walltime_s, walltime="W"
        )
        self.folder.write(job, "")

    def start(self, **variables: str) -> subprocess.Popen[bytes]:
        argv = ["--workspace", str(self.workspace.path), "--plan", self.workspace.digest, "--job", "abc.1"]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        self.started.append(
            subprocess.Popen(
                [sys.executable, "-P", "-m", "merlin.execution.job_chunk", *argv],
                env=kept | variables,
                start_new_session=True,
            )
        )
        return self.started[-1]

    def run(self, **variables: str) -> ChunkReport | None:
        assert self.start(**variables).wait(120) == 0
        return self.folder.report()

    def outcomes(self) -> list[tuple[int, int, int]]:
        return list(replay(self.workspace.ledger_dir, self.workspace.plan).outcomes["sim"].runs(0, 4))

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., JobBench]]:
    made: list[JobBench] = []

    def make(**instance: Any) -> JobBench:
        made.append(JobBench(tmp_path, **instance))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


def test_outcomes_are_in_the_ledger_and_in_the_report(make: Callable[..., JobBench]) -> None:
    bench = make(command="test $(MERLIN_SAMPLE_ID) != 2")
    bench.submit(walltime_s=1000)
    report = bench.run()
    assert report is not None
    assert report.result is not None
    assert report.result.runs == ((0, 2, OK), (2, 3, FAILED), (3, 4, OK))
    assert bench.outcomes() == [(0, 2, OK), (2, 3, FAILED), (3, 4, OK)]
    assert list((bench.workspace.info / "logs").iterdir()) == []


def test_a_function_runs_in_a_job_too(make: Callable[..., JobBench], tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def run(inputs, context):\n    return {'y': inputs['X']}\n")
    bench = make(kind=StepKind.FUNCTION, function="model:run")
    bench.submit()
    report = bench.run()
    assert report is not None
    assert report.result is not None
    assert report.result.runs == ((0, 4, OK),)


def test_a_job_that_its_scheduler_starts_again_runs_only_what_is_left(
    make: Callable[..., JobBench], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    # the first task takes long enough to be written down at once; the second ends only in the second start of the job
    waits = f"until test -e {log}.2; do sleep 0.05; done"
    command = (
        f"echo $(MERLIN_SAMPLE_ID) >> {log}; case $(MERLIN_SAMPLE_ID) in 0) sleep 1.1;; 1) {waits};; esac"
    )
    bench = make(command=command, fresh_shell=True)
    bench.submit()
    first = bench.start()
    wait_until(lambda: bench.outcomes()[0] == (0, 1, OK) and log.read_text().split() == ["0", "1"], first)
    first.kill()
    wait_until(lambda: processes_of(bench.workspace) == [], lambda: processes_of(bench.workspace))
    Path(f"{log}.2").touch()
    report = bench.run()
    assert report is not None
    assert report.result is not None
    assert report.result.runs == ((0, 1, OK), (1, 4, OK))
    assert log.read_text().split() == ["0", "1", "1", "2", "3"]


def test_when_its_walltime_is_over_it_reports_what_was_cut_off(
    make: Callable[..., JobBench], tmp_path: Path
) -> None:
    bench = make(command=f"test $(MERLIN_SAMPLE_ID) = 0 || {{ touch {tmp_path}/began; sleep 1000; }}")
    bench.submit(walltime_s=1000)
    process = bench.start()
    wait_until((tmp_path / "began").exists, process)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(120) == 0
    report = bench.folder.report()
    assert report is not None
    assert (report.result, report.cut_off, report.walltime) == (None, (1,), "W")
    assert (0, 1, OK) in report.done


def test_it_needs_no_signal_to_end_in_time_and_blames_a_task_even_if_none_could_begin(
    make: Callable[..., JobBench],
) -> None:
    bench = make(command="sleep 1000")
    bench.submit(walltime_s=MARGIN_S)
    report = bench.run()
    assert report is not None
    assert (report.result, report.cut_off) == (None, (0,))


def test_without_a_walltime_in_the_spec_the_limit_is_the_one_that_the_scheduler_states(
    make: Callable[..., JobBench], tmp_path: Path
) -> None:
    ends = "2026-01-01T00:10:00"  # long ago
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text(f"#!/bin/sh\necho '7|RUNNING|1|0|N/A|2026-01-01T00:00:00|{ends}|None|node1|n|'\n")
    squeue.chmod(0o755)
    bench = make(command="sleep 1000")
    bench.submit()
    report = bench.run(SLURM_JOB_ID="7", PATH=f"{squeue.parent}:{os.environ['PATH']}")
    assert report is not None
    assert (report.result, report.cut_off) == (None, (0,))


def test_a_signal_ends_it_without_blame(make: Callable[..., JobBench], tmp_path: Path) -> None:
    bench = make(command=f"touch {tmp_path}/began; sleep 1000")
    bench.submit(walltime_s=1000)
    process = bench.start()
    wait_until((tmp_path / "began").exists, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    report = bench.folder.report()
    assert report is not None
    assert (report.is_interrupted, report.cut_off, report.died) == (True, (), "")
    wait_until(lambda: processes_of(bench.workspace) == [], lambda: processes_of(bench.workspace))


def test_a_task_that_kills_its_worker_is_told_of(make: Callable[..., JobBench]) -> None:
    bench = make(command="kill -9 $(cut -d' ' -f6 /proc/$$/stat)")
    bench.submit()
    report = bench.run()
    assert report is not None
    assert (report.result, report.died, report.is_infrastructure) == (None, "SIGKILL", False)


def test_a_job_that_was_given_up_before_it_began_runs_nothing(
    make: Callable[..., JobBench], tmp_path: Path
) -> None:
    bench = make(command=f"touch {tmp_path}/began")
    bench.submit()
    bench.folder.void()
    assert bench.run() is None
    assert not (tmp_path / "began").exists()


def test_a_job_that_is_given_up_while_it_runs_commits_nothing_more(
    make: Callable[..., JobBench], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    bench = make(command=f"touch {gate}.began; until test -e {gate}; do sleep 0.05; done")
    bench.submit()
    process = bench.start()
    wait_until(Path(f"{gate}.began").exists, process)
    bench.folder.void()
    gate.touch()
    assert process.wait(120) == 0
    assert bench.folder.report() is None
    assert bench.outcomes() == [(0, 4, 255)]
