"""Runs chunks of submitted steps as batch jobs: takes them from the study's scheduler, and reports how they ended.

The scheduler of the study decides what runs; this only carries it out. Every job has a folder (see `job_folder`), so a
process that continues the study finds the jobs that still run. How a chunk ended is read from the job's own report, or
from the ledger when a job ended without one; the batch scheduler is only asked whether jobs live.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.text import path_safe
from merlin.batch.contract import Job, JobState
from merlin.batch.jobs import SchedulerClient
from merlin.errors import ExecutionError, MerlinError, SchedulerRefusedError
from merlin.execution.job_counts import count_jobs
from merlin.execution.job_errands import Errands
from merlin.execution.job_folder import JobFolder, StepJob, all_jobs, put_away_unusable, reported
from merlin.execution.job_reports import blamed, interrupted
from merlin.execution.job_schedulers import is_installed, lacks_program, scheduler_client
from merlin.execution.job_script import chunk_script
from merlin.execution.recorded import described
from merlin.plan.job_policy import JobPolicy, job_policy, policies
from merlin.plan.pieces import Run, clip, num_tasks, pieces_of
from merlin.plan.reports import ChunkReport
from merlin.plan.schedule import Scheduler
from merlin.plan.tasks import ENDED, Chunk
from merlin.workspace.directory import Workspace

LOOK_S = 1.0  # between two looks for reports
ASK_S = 10.5  # between two questions to a batch scheduler, which has a pace of its own
SUBMIT_S = 0.25  # between two submissions
SUBMIT_AGAIN_S = (2.0, 5.0, 10.0, 30.0)  # after so many failed submissions in a row, and then the last one
MAX_REFUSALS = 4  # submissions in a row, while no job of the study lives: the study stops
TELL_S = 60.0  # between two notes to users about the jobs
REPORT_S = 10.0  # for a report to become visible after its job has ended
SAY_S = 90.0  # for a batch scheduler to say how a job ended that reports an interruption; a question may take 60 s
MAX_FALSE_STARTS = 3  # jobs in a row that end before our program begins: the study stops
END_S = 5.0  # for jobs to report after they were cancelled with the study


class _Live(Struct):
    """A job whose chunk is not settled."""

    job: StepJob
    folder: JobFolder
    may_be_submitted: bool = False  # although it has no id, by an earlier owner or a failed command
    ended: Job | None = None  # what the batch scheduler said when it was over
    ended_at: float = 0.0
    reported_at: float | None = None  # when its report on an interruption was first seen


class StepJobs:
    """The batch jobs of one study. One thread calls this."""

    def __init__(
        self,
        workspace: Workspace,
        session: str,
        *,
        recorded: Callable[[Chunk], Iterable[Run]],
        make_client: Callable[[str], SchedulerClient] = scheduler_client,
        guard: Callable[[], None] = lambda: None,
        is_here: Callable[[str], bool] = is_installed,
    ) -> None:
        """`recorded`: the outcomes of a chunk that the ledger has. `guard` raises if nothing may be submitted.

        `is_here` says whether the commands of a scheduler are on this machine.
        """
        self._workspace, self._session, self._recorded = workspace, session, recorded
        self._guard, self._errands = guard, Errands(make_client)
        self._policies = policies(workspace.plan)
        self._absent = {p.scheduler for p in self._policies.values() if not is_here(p.scheduler)}
        self._live: dict[str, _Live] = {}  # by lease
        self._settled: list[tuple[JobFolder, bool]] = []  # by the last `step`, and whether to keep the files
        self._notes: list[str] = []
        self._submission: tuple[_Live, Future[str]] | None = None
        self._question: Future[dict[str, Job]] | None = None
        self._submit_at = self._ask_at = self._look_at = 0.0
        self._is_paced = False  # nothing was submitted, because it is too early
        self._num_refusals = self._num_false_starts = 0
        self._refusal = ""  # why the last submission that was refused failed
        self._is_trouble_noted = False
        self._told: list[str] = []
        self._tell_at = 0.0
        self._end_at: float | None = None  # of a study that stops at once
        self._has_cancelled = False
        self._has_stopped = False  # jobs that had not begun were given up

    def adopt(self) -> list[StepJob]:
        """Go on with the jobs of an earlier run or owner. The scheduler must adopt their chunks before `step`."""
        put_away_unusable(self._workspace)
        found = all_jobs(self._workspace)
        for job in found:
            folder = JobFolder(self._workspace, job.lease)
            self._live[job.lease] = _Live(job, folder, may_be_submitted=True)
        return found

    def adopt_all(self, scheduler: Scheduler) -> None:
        """Do the same, and let the scheduler adopt their chunks; `step` gives up jobs whose chunk it cannot adopt."""
        known = {instance.id for instance in scheduler.plan.instances}
        for job in self.adopt():
            if job.chunk.instance in known and scheduler.adopt(job.chunk):
                self._notes.append(f"goes on with job {job.id or job.name} for {described(job.chunk)}")

    def hurry(self, now: float) -> None:
        """Wait no longer for the jobs of a study that stops."""
        self._end_at = now

    def leases(self) -> set[str]:
        """The leases of the chunks that are jobs."""
        return set(self._live)

    @property
    def refusal(self) -> str:
        """Why the batch scheduler has refused the last job; "" if it has not."""
        return self._refusal if self._num_refusals else ""

    def notes(self) -> list[str]:
        """Lines for people, since the last call."""
        out, self._notes = [*self._notes, *self._errands.troubles()], []
        return out

    def next_wakeup(self, now: float) -> float | None:
        """When `step` has something to do, even if nothing else happens."""
        times = [self._submit_at] if self._is_paced else []
        if self._submission is not None or self._question is not None:
            times.append(now + LOOK_S / 10)
        if self._live or self._settled:
            times.append(self._look_at)
        return max(min(times), now) if times else None

    def close(self) -> None:
        """Wait for the commands that are on the way, but not for long. Jobs that live go on."""
        self._clean_up()
        self._errands.close()

    # -------------------------------------------------------------------- rounds

    def step(self, scheduler: Scheduler, now: float, *, may_submit: bool = True) -> list[ChunkReport]:
        """Do what is due; returns reports on chunks. Pass them to the scheduler and the ledger before the next call."""
        self._clean_up()
        if not self._policies and not self._live:
            return []
        self._handle_submission(now)
        self._handle_answer(now)
        self._is_paced = False
        reports = [*self._give_up_what_ended(scheduler), *self._reports(now)]
        if scheduler.stop_reason:
            reports += self._stop(now, at_once=scheduler.stop_now)
        elif may_submit:
            reports += self._submit(scheduler, now)
        self._ask(now)
        return reports

    def lacking(self, scheduler: Scheduler) -> str:
        """Why tasks that are ready are not submitted here; "" if they are."""
        if not self._absent:
            return ""
        counts = scheduler.counts()
        for instance in self._workspace.plan.instances:
            policy = self._policies.get(instance.step)
            has_some = counts[instance.id].ready or counts[instance.id].queued
            if policy is not None and policy.scheduler in self._absent and has_some:
                return lacks_program(policy.scheduler, instance.step)
        return ""

    def _give_up_what_ended(self, scheduler: Scheduler) -> list[ChunkReport]:
        """Give up jobs that were cancelled, or could not be adopted, or whose tasks have all ended by other means."""
        held = {lease: scheduler.held(lease) for lease in self._live}
        ended = [live for lease, live in self._live.items() if not (h := held[lease]) or not num_tasks(h)]
        self._give_up(ended)
        return [interrupted(live.job) for live in ended if held[live.job.lease] is not None]

    def _clean_up(self) -> None:
        for folder, keep in self._settled:
            folder.remove(keep=keep)
        self._settled = []

    def _settle(self, live: _Live, *, keep: bool) -> None:
        del self._live[live.job.lease]
        self._settled.append((live.folder, keep))

    # ---------------------------------------------------------------- submitting

    def _submit(self, scheduler: Scheduler, now: float) -> list[ChunkReport]:
        self._is_paced = now < self._submit_at
        if self._submission is not None or self._is_paced:
            return []
        self._guard()
        waiting = (live for live in self._live.values() if not live.job.id and live.ended is None)
        live = next(waiting, None) or self._take(scheduler, now)
        if live is None:
            return []
        if self._num_refusals >= MAX_REFUSALS and not any(other.job.id for other in self._live.values()):
            self._settle(live, keep=True)
            return [interrupted(live.job, trouble=f"no job can be submitted: {self._refusal}")]
        future = self._errands.submit(live.job, str(live.folder.script), is_again=live.may_be_submitted)
        self._submission = live, future
        return []

    def _take(self, scheduler: Scheduler, now: float) -> _Live | None:
        """The next chunk that may become a job, with its files."""
        for step, policy in self._policies.items():
            chunks = (live.job.chunk for live in self._live.values())
            if sum(self._workspace.instance(c.instance).step == step for c in chunks) >= policy.max_jobs:
                continue
            if policy.scheduler in self._absent:
                continue
            if (chunk := scheduler.take_for_job(now, step)) is not None:
                return self._new_job(chunk, policy)
        return None

    def _new_job(self, chunk: Chunk, policy: JobPolicy) -> _Live:
        instance = self._workspace.instance(chunk.instance)
        own = job_policy(instance)
        folder = JobFolder(self._workspace, chunk.lease)
        job = StepJob(
            chunk=chunk,
            session=self._session,
            scheduler=policy.scheduler,
            name=f"{path_safe(instance.step)[:40]}-{secrets.token_hex(4)}",
            walltime=str(instance.resources.get("walltime", "")),
            walltime_s=None if own is None else own.walltime_s,
            submitted=time.time(),
        )
        self._live[chunk.lease] = live = _Live(job, folder)
        folder.write(job, chunk_script(self._workspace, job, folder, os.environ))
        return live

    def _handle_submission(self, now: float) -> None:
        if self._submission is None or not self._submission[1].done():
            return
        (live, future), self._submission = self._submission, None
        try:
            id = future.result()
        except MerlinError as error:
            live.may_be_submitted = True
            is_refused = isinstance(error, SchedulerRefusedError)
            self._note_refusal(live, str(error) if is_refused else "")
            if is_refused:
                self._num_refusals, self._refusal = self._num_refusals + 1, str(error)
            self._submit_at = now + SUBMIT_AGAIN_S[min(self._num_refusals, len(SUBMIT_AGAIN_S) - 1)]
            self._note_trouble(f"cannot submit a job, and goes on trying: {error}")
            return
        self._num_refusals, self._submit_at, self._is_trouble_noted = 0, now + SUBMIT_S, False
        live.job = replace(live.job, id=id, refused="")
        if live.job.lease in self._live:
            live.folder.write(live.job)
        else:  # it was given up meanwhile
            self._errands.cancel([live.job])

    def _note_refusal(self, live: _Live, why: str) -> None:
        """Write down why a job is refused, or "", for those who look at the study from outside."""
        if live.job.refused != why and live.job.lease in self._live:
            live.job = replace(live.job, refused=why)
            live.folder.write(live.job)

    def _note_trouble(self, text: str) -> None:
        """Add a note for users, but only one until something works again."""
        if not self._is_trouble_noted:
            self._notes.append(text)
        self._is_trouble_noted = True

    # ------------------------------------------------------------------ asking

    def _ask(self, now: float) -> None:
        """Ask one question for all jobs."""
        live = [live.job for live in self._live.values() if live.job.id and live.ended is None]
        if live and self._question is None and now >= self._ask_at:
            self._ask_at = now + ASK_S
            self._question = self._errands.ask(live)

    def _handle_answer(self, now: float) -> None:
        if self._question is None or not self._question.done():
            return
        question, self._question = self._question, None
        try:
            found = question.result()
        except MerlinError as error:  # a failed question has no consequences
            self._note_trouble(f"cannot ask for the jobs, and goes on trying: {error}")
            return
        self._is_trouble_noted = False
        for lease, job in found.items():
            live = self._live.get(lease)
            if live is None or live.job.id != job.id:
                continue
            changed = replace(live.job, state=job.state, reason=job.reason)
            if changed != live.job:
                live.job = changed
                live.folder.write(changed)
            if job.state.is_over and live.ended is None:
                live.ended, live.ended_at = job, now
        self._tell(now)

    def _tell(self, now: float) -> None:
        """Note for users what the jobs do, from time to time, if that has changed."""
        lines = [str(counts) for counts in count_jobs(live.job for live in self._live.values())]
        if lines != self._told and now >= self._tell_at:
            self._told, self._tell_at = lines, now + TELL_S
            self._notes += lines

    # -------------------------------------------------------------------- ends

    def _reports(self, now: float) -> list[ChunkReport]:
        if now < self._look_at or not self._live:
            return []
        self._look_at = now + LOOK_S
        done = reported(self._workspace)
        out = []
        for live in list(self._live.values()):
            report = self._own_report(live, now) if live.job.lease in done else None
            if report is None and live.ended is not None and now - live.ended_at >= REPORT_S:
                report = self._report_without(live, live.ended)
            if report is not None:
                out.append(report)
        return out

    def _own_report(self, live: _Live, now: float) -> ChunkReport | None:
        """The job's own report; None if it cannot be used: then the ledger counts."""
        try:
            report = live.folder.report()
        except ExecutionError as error:
            self._note_trouble(str(error))
            return None
        if report is None or report.chunk != live.job.chunk or report.chunk.lease != live.job.lease:
            return None
        if report.is_interrupted and not report.cut_off:
            if self._may_be_told(live, now):
                return None
            report = blamed(report, live.job, live.ended, report.done)
        self._num_false_starts = 0
        self._settle(live, keep=report.result is None)
        if live.job.session != self._session and report.result is not None:
            return interrupted(live.job)  # this run may have reset tasks since: the ledger decides
        return report

    def _may_be_told(self, live: _Live, now: float) -> bool:
        """Whether the batch scheduler may still say if its limit ended a job that reports an interruption."""
        if live.reported_at is None:
            live.reported_at = now
        if not live.job.id or live.ended is not None or self._has_cancelled:
            return False
        return live.job.scheduler not in self._absent and now - live.reported_at < SAY_S

    def _report_without(self, live: _Live, ended: Job) -> ChunkReport:
        """The report on a job that ended without its own."""
        chunk, has_begun = live.job.chunk, live.folder.num_claims() > 0
        how = f"{ended.state}{f': {ended.reason}' if ended.reason else ''}"
        self._notes.append(f"job {live.job.id} of {described(chunk)} ended without a report ({how})")
        said = live.folder.output_tail()
        # a job that its scheduler does not know may still run
        self._give_up([live], must_cancel=ended.state is JobState.UNKNOWN)
        report = interrupted(live.job)
        if not has_begun and ended.state not in (JobState.LOST, JobState.UNKNOWN):
            self._num_false_starts += 1
            if self._num_false_starts < MAX_FALSE_STARTS:
                return report
            trouble = f"{self._num_false_starts} jobs in a row ended before they began ({how}); "
            trouble += f"the last one was {live.job.id} of {described(chunk)}"
            trouble += f"; it said:\n{said}" if said else ""
            return replace(report, trouble=trouble)
        self._num_false_starts = 0
        done = [run for run in clip(self._recorded(chunk), pieces_of(chunk)) if run[2] in ENDED]
        if ended.state is JobState.TIMEOUT:
            return blamed(report, live.job, ended, done)
        if done or not has_begun:  # it made progress, or its tasks cannot be the cause
            return report
        return replace(report, is_interrupted=False, died=f"its job ended: {how}", is_infrastructure=True)

    def _give_up(self, several: Sequence[_Live], *, must_cancel: bool = True) -> None:
        """End these jobs; they commit nothing from now on."""
        for live in several:
            live.folder.void()
            self._settle(live, keep=live.folder.num_claims() > 0 or bool(live.folder.output_tail()))
        alive = [live.job for live in several if live.job.id or live.may_be_submitted]
        if must_cancel and alive:
            self._errands.cancel(alive)

    # ---------------------------------------------------------------- stopping

    def _stop(self, now: float, *, at_once: bool) -> list[ChunkReport]:
        """Let no further job begin; with `at_once`, cancel running jobs, which have a moment to report."""
        if at_once and not self._has_cancelled:
            self._has_cancelled, self._end_at = True, self._end_at or now + END_S
            self._errands.cancel([live.job for live in self._live.values()])
        is_late = self._end_at is not None and now >= self._end_at
        if self._has_stopped and not is_late:
            return []
        self._has_stopped = True
        given_up = [live for live in self._live.values() if is_late or not live.folder.num_claims()]
        self._give_up(given_up, must_cancel=not self._has_cancelled)
        return [interrupted(live.job) for live in given_up]
