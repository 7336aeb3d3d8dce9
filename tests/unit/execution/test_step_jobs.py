"""Chunks of submitted steps as batch jobs: with a batch scheduler in memory, and with jobs that are processes here."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from recording_observer import RecordingObserver
from small_plans import same, step
from small_slurm import SmallSlurm
from study_on_disk import end_of, make_workspace, processes_of, start_warm_run, write_study
from waiting import wait_until

from merlin.batch.contract import BatchScheduler, Job, JobState
from merlin.batch.registry import scheduler_of
from merlin.errors import (
    ExecutionError,
    SchedulerRefusedError,
    SchedulerUnreachableError,
    UsageError,
    WorkspaceError,
)
from merlin.execution.conductor import RunOptions
from merlin.execution.distributed.registry import StudyInfo
from merlin.execution.embedded import run_embedded
from merlin.execution.job_counts import count_jobs
from merlin.execution.job_folder import JobFolder, StepJob, all_jobs
from merlin.execution.step_jobs import StepJobs
from merlin.plan.pieces import Run, pieces_of
from merlin.plan.reports import ChunkReport, settle_report
from merlin.plan.schedule import Scheduler
from merlin.plan.tasks import Chunk, ChunkResult, Outcome
from merlin.views.live import published_members
from merlin.views.obstacles import obstacles
from merlin.views.study_facts import facts_of
from merlin.views.worker_jobs import jobs_of_steps
from merlin.workspace.directory import Workspace, extension_name
from merlin.workspace.holding import lock

OK, FAILED = Outcome.OK, Outcome.FAILED
JOBS = {"batch.submit": True, "batch.type": "slurm", "batch.tasks_per_job": 4, "walltime": "00:30:00"}


class FakeClient:
    """Jobs in memory: a test says what becomes of them."""

    def __init__(self) -> None:
        self.scheduler: BatchScheduler = scheduler_of("slurm")
        self.known: dict[str, Job] = {}
        self.cancelled: list[str] = []
        self.num_questions = 0
        self.error: Exception | None = None

    def submit(self, name: str, script: str, *, is_again: bool = False) -> str:
        if self.error is not None:
            raise self.error
        if is_again and (found := self.find(name)):
            return found.id
        id = str(len(self.known) + 1)
        self.known[id] = Job(id=id, name=name, state=JobState.PENDING)
        return id

    def find(self, name: str) -> Job | None:
        return next((job for job in self.known.values() if job.name == name), None)

    def jobs(self, ids: Collection[str], *, is_urgent: bool = False) -> dict[str, Job]:
        self.num_questions += 1
        if self.error is not None:
            raise self.error
        return {id: self.known.get(id, Job(id=id)) for id in ids}

    def cancel(self, ids: Sequence[str]) -> None:
        self.cancelled += ids

    def end(self, id: str, state: JobState, reason: str = "") -> None:
        self.known[id] = replace(self.known[id], state=state, reason=reason)


class Bench:
    """A study whose jobs are in memory, with a clock at hand."""

    def __init__(
        self,
        workspace: Workspace,
        client: FakeClient | None = None,
        scheduler: Scheduler | None = None,
        *,
        is_here: bool = True,
    ) -> None:
        self.workspace, self.client = workspace, client or FakeClient()
        self.scheduler = scheduler or Scheduler(workspace.plan, {}, num_workers=1, name="abc.")
        self.recorded: list[Run] = []
        self.jobs = StepJobs(
            workspace,
            "session",
            recorded=lambda chunk: self.recorded,
            make_client=lambda name: self.client,
            is_here=lambda name: is_here,
        )
        self.now = 0.0

    def next_owner(self, *, is_here: bool = True) -> Bench:
        """Another process that goes on with the jobs; `is_here`: with the scheduler's commands."""
        scheduler = Scheduler(self.workspace.plan, {}, num_workers=1, name="def.")
        found = Bench(self.workspace, self.client, scheduler, is_here=is_here)
        found.jobs.adopt_all(scheduler)
        return found

    def rounds(self, num: int = 1, seconds: float = 11.0) -> list[ChunkReport]:
        """So many rounds with so much time in between; the errands of each are done before the next."""
        out = []
        for _ in range(num):
            reports = self.jobs.step(self.scheduler, self.now)
            for report in reports:
                settle_report(self.scheduler, report, self.recorded, self.now)
            out += reports
            self._finish_errands()
            self.now += seconds
        return out

    def _finish_errands(self) -> None:
        errands: Any = self.jobs._errands
        for _, future in errands._running:
            future.exception(timeout=60)

    def folder(self, number: int) -> JobFolder:
        return JobFolder(self.workspace, f"abc.{number}")

    def interrupt(self, number: int) -> None:
        """The job reports that its first task has ended, and that a signal has cut off the second one."""
        folder = self.folder(number)
        folder.claim()
        runs = ((0, 1, int(OK)), (1, 2, int(Outcome.INTERRUPTED)))
        folder.write_report(
            ChunkReport(chunk=folder.read().chunk, worker="job", done=runs, is_interrupted=True)
        )

    def end(self, number: int, *, outcome: int = OK, job: str = "", note: str = "") -> None:
        """The job reports that all its tasks have ended."""
        folder = self.folder(number)
        chunk = folder.read().chunk
        runs = tuple((a, b, int(outcome)) for a, b in pieces_of(chunk))
        folder.write_report(
            ChunkReport(chunk=chunk, worker="job", result=ChunkResult(chunk=chunk, runs=runs, note=note))
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(num: int = 10, **resources: Any) -> Bench:
        given = {**JOBS, **{f"batch.{key}": value for key, value in resources.items()}}
        made.append(Bench(make_workspace(tmp_path, step("sim", num, command="true", resources=given))))
        return made[-1]

    yield make
    for one in made:
        one.jobs.close()


def test_tasks_become_jobs_of_so_many_tasks_and_their_reports_end_the_study(
    bench: Callable[..., Bench],
) -> None:
    at = bench(10)
    at.rounds(6)
    assert [(job.chunk.lo, job.chunk.hi) for job in all_jobs(at.workspace)] == [(0, 4), (4, 8), (8, 10)]
    for number in (1, 2, 3):
        at.end(number)
    at.rounds(2)
    assert at.scheduler.is_complete
    assert at.scheduler.counts()["sim"].ok == 10
    assert all_jobs(at.workspace) == []
    assert at.jobs.leases() == set()


def test_no_more_jobs_than_allowed_are_there_at_a_time(bench: Callable[..., Bench]) -> None:
    at = bench(40, max_jobs=2)
    at.rounds(8)
    assert len(at.client.known) == 2
    at.end(1)
    at.rounds(4)
    assert len(at.client.known) == 3


def test_workers_get_nothing_of_a_submitted_step(bench: Callable[..., Bench]) -> None:
    at = bench()
    assert at.scheduler.take(0.0) is None
    assert at.scheduler.take(0.0, "merlin") is None


def test_all_jobs_are_asked_for_in_one_question_and_not_more_often_than_six_times_a_minute(
    bench: Callable[..., Bench],
) -> None:
    at = bench(400, max_jobs=100)
    at.rounds(1200, seconds=0.5)  # ten minutes
    assert len(at.client.known) == 100
    assert at.client.num_questions <= 60


def test_people_are_told_what_the_jobs_do_and_why_they_wait(bench: Callable[..., Bench]) -> None:
    at = bench(8)
    at.rounds(3)
    at.client.end("1", JobState.RUNNING)
    at.client.end("2", JobState.PENDING, "Priority")
    at.rounds(8)
    assert at.jobs.notes()[-1] == "batch jobs of sim: 1 pending (Priority), 1 running"
    assert str(*count_jobs(all_jobs(at.workspace))) == "batch jobs of sim: 1 pending (Priority), 1 running"


def test_the_list_of_worker_jobs_counts_those_of_steps_too(bench: Callable[..., Bench]) -> None:
    at = bench(8)
    at.rounds(2)
    seen, gone = (
        StudyInfo(study_id=path, name="s", workspace=path, plan="p", queues=[], session="s", published=0.0)
        for path in (str(at.workspace.path), "/gone")
    )
    (study,) = jobs_of_steps([gone, seen])
    assert study.workspace == str(at.workspace.path)
    assert [counts.instance for counts in study.steps] == ["sim"]


def test_a_lost_job_that_made_progress_runs_on_in_a_new_one_without_a_retry(
    bench: Callable[..., Bench],
) -> None:
    at = bench(4)
    at.rounds(2)
    at.folder(1).claim()
    at.recorded = [(0, 2, OK)]
    at.client.end("1", JobState.LOST, "NODE_FAIL")
    (report,) = at.rounds(4)
    assert report.is_interrupted
    at.rounds(2)
    (job,) = all_jobs(at.workspace)
    assert (job.chunk.lo, job.chunk.hi, job.chunk.attempt, job.chunk.retries) == (2, 4, 2, 0)
    assert "ended without a report" in " ".join(at.jobs.notes())


def test_a_job_that_was_given_up_commits_nothing_when_it_comes_back(bench: Callable[..., Bench]) -> None:
    at = bench(4)
    at.rounds(2)
    folder = at.folder(1)
    claim = folder.claim()
    assert folder.may_commit(claim)
    at.client.end("1", JobState.UNKNOWN)
    at.rounds(3)
    assert not folder.may_commit(claim)
    assert at.client.cancelled == ["1"]


def test_a_job_started_again_by_its_scheduler_outranks_its_first_start(bench: Callable[..., Bench]) -> None:
    at = bench(4)
    at.rounds(2)
    folder = at.folder(1)
    first, second = folder.claim(), folder.claim()
    assert (folder.may_commit(first), folder.may_commit(second)) == (False, True)


def test_a_task_that_no_walltime_is_long_enough_for_fails_with_a_clear_cause(
    bench: Callable[..., Bench],
) -> None:
    at = bench(1)
    for number in (1, 2, 3):
        at.rounds(2)
        at.folder(number).claim()
        at.client.end(str(number), JobState.TIMEOUT)
        at.rounds(3)
    (verdict,) = at.scheduler.decided_outcomes()
    assert (verdict.outcome, verdict.attempt) == (FAILED, 4)
    assert "walltime of 00:30:00 of its job was over 3 times" in verdict.cause
    assert at.scheduler.is_complete


def test_what_had_ended_when_the_walltime_was_over_counts(bench: Callable[..., Bench]) -> None:
    at = bench(4)
    at.rounds(2)
    at.folder(1).claim()
    at.recorded = [(0, 3, OK)]
    at.client.end("1", JobState.TIMEOUT)
    (report,) = at.rounds(4)
    assert report.cut_off == (3,)
    assert at.scheduler.counts()["sim"].ok == 3


@pytest.mark.parametrize(
    ("state", "cut_off"), [(JobState.TIMEOUT, (1,)), (JobState.CANCELLED, ()), (JobState.UNKNOWN, ())]
)
def test_a_job_that_a_signal_has_ended_blames_a_task_only_if_its_scheduler_says_that_this_was_its_limit(
    bench: Callable[..., Bench], state: JobState, cut_off: tuple[int, ...]
) -> None:
    at = bench(4)
    at.rounds(2)
    at.interrupt(1)
    assert at.rounds(3) == []
    at.client.end("1", state)
    (report,) = at.rounds(3)
    assert (report.is_interrupted, report.cut_off) == (True, cut_off)
    assert at.scheduler.counts()["sim"].ok == 1


@pytest.mark.parametrize("is_here", [True, False])
def test_the_report_of_an_interrupted_job_counts_in_the_end_if_its_scheduler_cannot_be_asked(
    bench: Callable[..., Bench], is_here: bool
) -> None:
    at = bench(4)
    at.rounds(2)
    at.interrupt(1)
    at.client.error = SchedulerUnreachableError("no answer")
    owner = at.next_owner(is_here=is_here)
    early, late = owner.rounds(3), owner.rounds(10)
    (report,) = late if is_here else early
    assert (report.is_interrupted, report.cut_off, owner.scheduler.counts()["sim"].ok) == (True, (), 1)
    assert bool(owner.jobs.lacking(owner.scheduler)) != is_here  # then it lets others try
    owner.jobs.close()


def test_a_job_of_another_cluster_with_the_same_id_is_neither_believed_nor_cancelled(
    bench: Callable[..., Bench],
) -> None:
    at = bench(8)
    at.rounds(4)
    at.client.known["1"] = Job(id="1", name="other", state=JobState.RUNNING)
    (report,) = at.rounds(3)
    assert (report.chunk.lease, report.is_interrupted) == ("abc.1", True)
    assert "its id is that of the job other" in " ".join(at.jobs.notes())
    at.rounds(2)
    at.scheduler.stop("interrupted", now=True)
    at.rounds(3)
    assert sorted(at.client.cancelled) == ["2", "3"]


def test_jobs_that_end_before_they_begin_stop_the_study_with_what_they_said(
    bench: Callable[..., Bench],
) -> None:
    at = bench(40)
    for number in range(1, 4):
        at.rounds(1)
        at.rounds(1)
        at.folder(number).output.write_text("python: command not found")
        at.client.end(str(number), JobState.FAILED)
    at.rounds(4)
    assert at.scheduler.stop_now
    assert "python: command not found" in at.scheduler.stop_reason


def test_nothing_follows_from_an_answer_that_is_garbage(bench: Callable[..., Bench]) -> None:
    at = bench(4)
    at.rounds(2)
    at.client.error = SchedulerUnreachableError("squeue: <html>")
    assert at.rounds(20) == []
    assert sum("squeue: <html>" in note for note in at.jobs.notes()) == 1
    at.client.error = None
    at.end(1)
    at.rounds(2)
    assert at.scheduler.is_complete


def test_a_report_that_is_garbage_leaves_the_ledger_to_decide(bench: Callable[..., Bench]) -> None:
    at = bench(4)
    at.rounds(2)
    at.folder(1).claim()
    at.end(1)
    (at.workspace.info / "step_jobs/reports/abc.1.json").write_text('{"chunk": 7')
    at.recorded = [(0, 4, OK)]
    at.client.end("1", JobState.OK)
    at.rounds(4)
    assert at.scheduler.is_complete


def test_a_report_that_names_a_file_whose_name_is_no_text_counts(bench: Callable[..., Bench]) -> None:
    at = bench(4)
    at.rounds(2)
    at.end(1, note="b\udcff.txt is missing")
    (report,) = at.rounds(2)
    assert report.result is not None and report.result.note == "b\udcff.txt is missing"


@pytest.mark.parametrize("name", ["no\xa0break", "no\ttab"])
def test_a_path_that_no_job_script_can_hold_ends_the_run_with_a_clear_error(
    tmp_path: Path, name: str
) -> None:
    at = Bench(make_workspace(tmp_path / name, step("sim", 4, resources=JOBS)))
    with pytest.raises(ExecutionError, match=r"(?s)step 'sim' cannot have batch jobs: the output .* no '\\"):
        at.rounds(1)


def test_a_scheduler_that_refuses_every_job_stops_the_study(bench: Callable[..., Bench]) -> None:
    at = bench(4)
    at.client.error = SchedulerRefusedError("sbatch: invalid partition")
    at.rounds(20, seconds=40.0)
    assert "invalid partition" in at.scheduler.stop_reason


def test_a_refused_job_counts_as_such_until_it_is_taken(bench: Callable[..., Bench]) -> None:
    at = bench(4)
    said = "sbatch failed with exit code 1:\n    sbatch: error: no such partition\n    the command: sbatch x"
    at.client.error = SchedulerRefusedError(said)
    at.rounds(2)
    told = "batch jobs of sim: 0 pending, 0 running, 1 refused (sbatch: error: no such partition)"
    assert str(*count_jobs(all_jobs(at.workspace))) == told
    at.client.error = SchedulerUnreachableError("sbatch gave no answer in time")
    at.rounds(10)
    assert "refused" not in str(*count_jobs(all_jobs(at.workspace)))
    at.client.error = None
    at.rounds(3)
    assert str(*count_jobs(all_jobs(at.workspace))) == "batch jobs of sim: 1 pending, 0 running"


def test_a_scheduler_that_is_away_is_waited_for(bench: Callable[..., Bench]) -> None:
    at = bench(4)
    at.client.error = SchedulerUnreachableError("no answer")
    at.rounds(50, seconds=40.0)
    assert at.scheduler.stop_reason == ""
    at.client.error = None
    at.rounds(3, seconds=40.0)
    at.end(1)
    at.rounds(2)
    assert at.scheduler.is_complete


def test_a_stop_gives_up_what_waits_and_lets_what_runs_end(bench: Callable[..., Bench]) -> None:
    at = bench(8)
    at.rounds(4)
    at.folder(1).claim()
    at.scheduler.stop("enough")
    at.rounds(2)
    assert at.client.cancelled == ["2"]
    assert at.scheduler.leases() == {"abc.1"}
    at.end(1)
    at.rounds(2)
    assert (at.scheduler.counts()["sim"].ok, at.scheduler.num_running) == (4, 0)


def test_a_stop_in_the_pause_between_submissions_does_not_keep_the_run_awake(
    bench: Callable[..., Bench],
) -> None:
    at = bench(8)
    at.rounds(2)
    at.folder(1).claim()
    at.scheduler.stop("enough")
    at.rounds(1, seconds=0.5)
    wakeup = at.jobs.next_wakeup(at.now)
    assert wakeup is not None and wakeup > at.now


def test_an_interrupt_cancels_all_jobs_and_waits_only_a_moment(bench: Callable[..., Bench]) -> None:
    at = bench(8)
    at.rounds(4)
    at.folder(1).claim()
    at.recorded = [(0, 1, OK)]
    at.scheduler.stop("interrupted", now=True)
    at.rounds(3)
    assert set(at.client.cancelled) == {"1", "2"}
    assert (at.scheduler.counts()["sim"].ok, at.scheduler.num_running) == (1, 0)


@pytest.mark.parametrize("is_adopted", [False, True])
def test_an_interrupt_cancels_the_jobs_also_if_no_question_is_answered_and_asks_only_about_those_of_others(
    bench: Callable[..., Bench], is_adopted: bool
) -> None:
    at = bench(8)
    at.rounds(4)
    owner = at.next_owner() if is_adopted else at
    num_before, at.client.error = at.client.num_questions, SchedulerUnreachableError("no answer")
    owner.scheduler.stop("interrupted", now=True)
    owner.rounds(1)
    assert at.client.cancelled == ["1", "2"]
    assert at.client.num_questions - num_before == is_adopted
    owner.jobs.close()


def test_another_owner_goes_on_with_the_jobs_also_with_one_whose_id_is_not_known(
    bench: Callable[..., Bench],
) -> None:
    at = bench(8)
    at.rounds(4)
    folder = at.folder(2)
    folder.write(replace(folder.read(), id=""))  # killed between the submission and the record of it
    next_one = at.next_owner()
    next_one.rounds(3)
    assert len(at.client.known) == 2
    assert {job.id for job in all_jobs(at.workspace)} == {"1", "2"}
    for number in (1, 2):
        at.end(number)
    next_one.rounds(2)
    assert next_one.scheduler.is_complete
    next_one.jobs.close()


def test_jobs_of_tasks_that_may_not_run_now_are_given_up(bench: Callable[..., Bench]) -> None:
    at = bench(4)
    at.rounds(2)
    at.scheduler.fail({"sim"}, "cancelled")
    at.rounds(2)
    assert at.client.cancelled == ["1"]
    assert all_jobs(at.workspace) == []


# ------------------------------------------------------------------ with processes


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallSlurm]:
    cluster = SmallSlurm(tmp_path / "slurm").install(monkeypatch)
    yield cluster
    cluster.close()


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def test_a_study_with_submitted_and_other_steps_runs_to_its_end(tmp_path: Path, slurm: SmallSlurm) -> None:
    workspace = make_workspace(
        tmp_path,
        step("sim", 6, command="echo $SLURM_JOB_ID > job; test $(MERLIN_SAMPLE_ID) != 5", resources=JOBS),
        step("post", 6, same("sim"), command="true"),
    )
    summary = run_embedded(workspace, RunOptions(workers=1), RecordingObserver())
    assert (summary.ok, summary.failed, summary.skipped) == (10, 1, 1)
    jobs = [
        (workspace.task_dir(workspace.instance("sim"), task) / "job").read_text().strip() for task in range(6)
    ]
    assert jobs == ["1"] * 4 + ["2"] * 2
    assert all_jobs(workspace) == []


def test_after_kill_9_the_jobs_run_on_and_a_restart_goes_on_with_them(
    tmp_path: Path, slurm: SmallSlurm
) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    command = f"echo $(MERLIN_SAMPLE_ID) >> {log}; until test -e {gate}; do sleep 0.05; done"
    workspace = make_workspace(tmp_path, step("sim", 8, command=command, resources=JOBS))
    run = start_warm_run(workspace, workers=1)
    wait_until(lambda: len(lines(log)) == 2, run)
    run.kill()
    run.wait()
    again = start_warm_run(workspace, workers=1)
    wait_until(lambda: len(list((workspace.info / "ledger").glob("*"))) >= 5 or again.poll() is not None)
    gate.touch()
    summary = end_of(again)
    assert summary["ok"] == 8
    assert sorted(lines(log), key=int) == [str(task) for task in range(8)]  # each once
    assert slurm.calls("sbatch") == 2


def test_ctrl_c_cancels_the_jobs(tmp_path: Path, slurm: SmallSlurm) -> None:
    log = tmp_path / "log"
    workspace = make_workspace(
        tmp_path, step("sim", 8, command=f"echo a >> {log}; sleep 1000", resources=JOBS)
    )
    run = start_warm_run(workspace, workers=1)
    wait_until(lambda: len(lines(log)) == 2, run)
    run.send_signal(signal.SIGINT)
    summary = end_of(run)
    assert (summary["missing"], summary["stop_reason"]) == (8, "interrupted")
    assert {slurm.state(job) for job in slurm.jobs()} == {"CANCELLED"}
    wait_until(lambda: processes_of(workspace) == [], lambda: processes_of(workspace))


def test_what_a_run_was_refused_is_known_after_ctrl_c_too(tmp_path: Path, slurm: SmallSlurm) -> None:
    (slurm.root / "bin" / "sbatch").write_text("#!/bin/sh\necho no such partition >&2; exit 1\n")
    workspace = make_workspace(tmp_path, step("sim", 8, command="true", resources=JOBS))
    run = start_warm_run(workspace, workers=1)
    wait_until(lambda: any(job.refused for job in all_jobs(workspace)), run)
    run.send_signal(signal.SIGINT)
    end_of(run)
    stopped, refused, *_ = obstacles(facts_of(workspace))
    assert (stopped.what, refused.kind) == ("it has stopped: interrupted", "job")
    assert refused.what.endswith("refused: no such partition")


def test_jobs_that_a_killed_command_has_left_can_be_cancelled(tmp_path: Path, slurm: SmallSlurm) -> None:
    log = tmp_path / "log"
    workspace = make_workspace(
        tmp_path, step("sim", 8, command=f"echo a >> {log}; sleep 1000", resources=JOBS)
    )
    run = start_warm_run(workspace, workers=1)
    wait_until(lambda: len(lines(log)) == 2, run)
    wait_until(lambda: len([job for job in all_jobs(workspace) if job.id]) == 2, run)
    run.kill()
    run.wait()
    words = [sys.executable, "-m", "merlin.cli", "cancel", str(workspace.path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "cancelled 2 batch jobs"), done.stderr
    assert {slurm.state(job) for job in slurm.jobs()} == {"CANCELLED"}
    assert all_jobs(workspace) == []


def test_a_cancel_that_could_not_reach_the_scheduler_of_an_extension_can_be_given_again(
    tmp_path: Path, slurm: SmallSlurm
) -> None:
    study = make_workspace(tmp_path, step("sim", 8, resources=JOBS))
    first, second = (
        write_study(
            study.path / extension_name(number), step("sim", 8), study_id=f"s{number}", extension=number
        )
        for number in (1, 2)
    )
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --job-name=sim-1\n#SBATCH --output=/dev/null\nexec sleep 1000\n")
    subprocess.run(["sbatch", script], check=True, stdout=subprocess.DEVNULL)
    for member, scheduler in ((first, "pbs"), (second, "slurm")):  # as the first cancel has left them
        folder = JobFolder(member, "abc.1")
        chunk = Chunk(instance="sim", lo=0, hi=4, lease="abc.1")
        folder.write(StepJob(chunk=chunk, session="s", scheduler=scheduler, name="sim-1", id="1"))
        folder.void()
    with lock(study), pytest.raises(WorkspaceError, match="press Ctrl-C there"):
        published_members(study)
    words = [sys.executable, "-m", "merlin.cli", "cancel", str(study.path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "qdel" in done.stderr) == (1, True), done.stderr
    assert slurm.state("1") == "CANCELLED"
    left = [len(all_jobs(member, given_up=True)) for member in (study, first, second)]
    assert left == [0, 1, 0]


def test_without_the_scheduler_the_run_says_so_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    resources = {**JOBS, "batch.type": "pbs"}
    workspace = make_workspace(tmp_path, step("sim", 8, command="true", resources=resources))
    with pytest.raises(UsageError, match=r"(?s)no qsub on the PATH.*type: local"):
        run_embedded(workspace, RunOptions(workers=1), RecordingObserver())
