"""A snapshot of a study that also knows what workers on other machines do, if the servers can be asked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import Struct

from merlin.errors import ConfigError, ExecutionError, WorkspaceError
from merlin.ledger.replay import replay
from merlin.plan.tasks import NO_OUTCOME, Outcome
from merlin.status.activity import Activity, LiveWorkers, of_silence, of_workers
from merlin.status.facts import LedgerFacts
from merlin.status.live import holder_of
from merlin.status.run_events import was_published
from merlin.status.snapshot import Snapshot, is_published, local_activity, read_facts, snapshot_of
from merlin.workspace.directory import Workspace, shown_together

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.execution.job_counts import StepJobCounts
    from merlin.status.tasks import RunningTasks
    from merlin.views.serving import Servers

JOBS_DIR = "step_jobs"  # in merlin_info; `execution.job_folder`, which is heavy, says what is in it


class LiveStudy(Struct, frozen=True):
    """How far a study is, and what only the servers know."""

    snapshot: Snapshot
    workers: LiveWorkers | None  # of a published study that runs
    start: str  # the commands that start workers, of a published study that runs
    jobs: tuple[StepJobCounts, ...] = ()  # of steps that have batch jobs of their own
    is_settled: bool = False  # no run and no worker has it, so it changes only when its files change


class AskServers:
    """Asks the configured servers only when needed, and only once; a failure is raised again at once next time."""

    def __init__(self) -> None:
        self._servers: Servers | None = None
        self._error: ConfigError | ExecutionError | None = None

    def __call__(self) -> Servers:
        """Return the servers, which are found once. Raises ConfigError or ExecutionError if they cannot be asked."""
        if self._error is not None:
            raise self._error
        if self._servers is None:
            from merlin.config.load import require_config  # heavy: pydantic
            from merlin.views.serving import Servers

            try:
                self._servers = Servers(require_config())
            except (ConfigError, ExecutionError) as error:
                self._error = error
                raise
        return self._servers


def live_study(workspace: Workspace, servers: AskServers | None = None) -> LiveStudy:
    """The snapshot, with what the servers know of a published study; `servers` may be shared by several studies."""
    now = time.time()
    facts = read_facts(workspace)
    jobs = _step_jobs(workspace)
    activity, workers, start = local_activity(workspace, facts, now), None, ""
    is_open = is_published(facts) and _has_work(facts)
    is_settled = activity.state == "none" and not is_open
    if activity.state == "none" and is_open:
        from merlin.views.ways_to_start import ways_to_start  # it knows all schedulers

        start = ways_to_start(workspace.plan, workspace.path)
        activity, workers = _published(workspace, facts, servers or AskServers(), jobs, start)
        if activity.state == "none":  # it may have ended after the ledger was read
            facts = read_facts(workspace)
    snapshot = snapshot_of(
        workspace,
        facts,
        activity,
        now,
        workers=workers,
        step_jobs={counts.instance: counts.pending + counts.running for counts in jobs},
    )
    return LiveStudy(snapshot, workers, start, jobs, is_settled)


def ask_workers(workspace: Workspace, config: Config) -> LiveWorkers | None:
    """The workers of a published study; None if it does not run. Raises ExecutionError if Redis cannot be asked."""
    from merlin.views.serving import Servers

    facts = read_facts(workspace)
    return Servers(config).serving(workspace.plan, facts.counts()) if _has_work(facts) else None


def running_tasks(workspace: Workspace) -> list[RunningTasks]:
    """What workers run at present of a published study and of its extensions.

    Raises ConfigError or ExecutionError if those who know it cannot be asked.
    """
    members = [(member.plan.study_id, read_facts(member)) for member in shown_together(workspace)]
    open_ones = {study for study, facts in members if is_published(facts) and _has_work(facts)}
    return AskServers()().running(open_ones) if open_ones else []


def _has_work(facts: LedgerFacts) -> bool:
    return any(found.get(NO_OUTCOME) or found.get(Outcome.INTERRUPTED) for found in facts.counts().values())


def _published(
    workspace: Workspace, facts: LedgerFacts, ask: AskServers, jobs: tuple[StepJobCounts, ...], start: str
) -> tuple[Activity, LiveWorkers | None]:
    """Who works on a study that was handed to workers."""
    try:
        workers = ask().serving(workspace.plan, facts.counts())
    except (ConfigError, ExecutionError) as error:
        return of_silence(error), None
    return of_workers(workers, sum(counts.running for counts in jobs), start), workers


def _step_jobs(workspace: Workspace) -> tuple[StepJobCounts, ...]:
    if not (workspace.info / JOBS_DIR).is_dir():
        return ()
    from merlin.execution.job_counts import count_jobs
    from merlin.execution.job_folder import all_jobs

    return tuple(count_jobs(all_jobs(workspace)))


def published_members(workspace: Workspace) -> list[Workspace]:
    """The study and the extensions that workers have, or that have left batch jobs.

    Raises WorkspaceError if a command runs one of them itself.
    """
    studies = shown_together(workspace)
    found = [study for study in studies if is_published(replay(study.ledger_dir, study.plan))]
    for study in studies if not found else ():  # a worker that publishes one again holds its lock, too
        if holder := holder_of(study):
            raise WorkspaceError(
                f"{study.path} is run by a command of its own ({holder}), not by workers; press Ctrl-C there, "
                "or send it SIGTERM"
            )
    return found + [study for study in studies if study not in found and has_left_jobs(study)]


def last_on_workers(workspace: Workspace) -> list[Workspace]:
    """The study and the extensions whose last run was one on workers, even if it has ended."""
    return [
        study for study in shown_together(workspace) if was_published(replay(study.ledger_dir, study.plan))
    ]


def has_left_jobs(study: Workspace) -> bool:
    """Whether nobody runs the study, but jobs that it has submitted, or that were given up, may not have ended."""
    if not (study.info / JOBS_DIR).is_dir():
        return False
    from merlin.execution.job_folder import all_jobs

    return bool(all_jobs(study, given_up=True)) and holder_of(study) is None
