"""Why nothing, or nothing more, runs: every condition that is not met, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from merlin.batch.job_records import JobRecord, JobRecords
from merlin.batch.jobs import SchedulerClient
from merlin.batch.registry import installed, to_ask
from merlin.config.load import find_config
from merlin.config.model import Config
from merlin.errors import ConfigError, ExecutionError, MerlinError, command_line
from merlin.execution.distributed.registry import WorkerInfo
from merlin.execution.distributed.worker_jobs import jobs_folder
from merlin.views.job_obstacles import Asked, of_autoscale, of_jobs
from merlin.views.obstacle import Kind, Obstacle
from merlin.views.obstacles import obstacles
from merlin.views.queues import served_queues
from merlin.views.servers import open_registry, reach_all
from merlin.views.study_facts import StudyFacts, facts_of
from merlin.workspace.directory import Workspace, open_workspace, shown_together

SCHEDULER_S = 5.0  # for the batch scheduler to answer


class Explanation(Struct, frozen=True, kw_only=True):
    """What runs, and what keeps more from running."""

    num_chunks: int  # that run
    num_workers: int  # alive, on the queues
    obstacles: tuple[Obstacle, ...]

    @property
    def exit_code(self) -> int:
        return 0 if self.num_chunks else 1


# ------------------------------------------------------------------------------------------ of a study


class StudyExplanation(Struct, frozen=True, kw_only=True):
    """What keeps more of a study, and of its extensions, from running."""

    members: tuple[StudyFacts, ...]  # the study and its extensions
    obstacles: tuple[Obstacle, ...]

    @property
    def num_running(self) -> int:
        """Chunks that are known to run."""
        return sum(facts.num_running for facts in self.members)

    @property
    def is_ended(self) -> bool:
        """Every task has an outcome."""
        return not any(facts.missing for facts in self.members)

    @property
    def is_ok(self) -> bool:
        """It has ended well, or goes on."""
        return all(facts.is_running if facts.missing else not facts.failed for facts in self.members) and all(
            each.is_normal for each in self.obstacles
        )

    @property
    def exit_code(self) -> int:
        return 0 if self.is_ok else 1


def obstacles_of(workspace: Workspace) -> tuple[Obstacle, ...]:
    """What keeps more of a study, and of its extensions, from running; nothing if all goes well.

    Obstacles that pass by themselves are left out. It takes a few seconds at most, even if a server does not answer:
    then that is the obstacle. Batch schedulers are not asked.
    """
    found = explain_study(workspace, is_thorough=False).obstacles
    return tuple(each for each in found if not each.is_normal)


def explain_study(workspace: Workspace, *, is_thorough: bool = True) -> StudyExplanation:
    """Look at everything that may keep the study, and its extensions, from running.

    If thorough, it also asks the batch scheduler, and writes a small file to see whether there is room. Raises
    LedgerError.
    """
    members = tuple(facts_of(study, tries_disk=is_thorough) for study in shown_together(workspace))
    found: list[Obstacle] = []
    for facts in members:
        found += [_named(each, facts.workspace.member) for each in obstacles(facts)]
    if any(facts.is_published and facts.missing for facts in members):
        found += _of_worker_jobs(workspace, members, is_thorough)
    unique = dict.fromkeys(found)  # study and extensions report the same dead server
    return StudyExplanation(members=members, obstacles=tuple(sorted(unique, key=lambda each: each.is_normal)))


def _named(obstacle: Obstacle, member: str) -> Obstacle:
    if not member or obstacle.kind is Kind.SERVER:
        return obstacle
    return replace(obstacle, what=f"{member}: {obstacle.what}")


def _of_worker_jobs(
    workspace: Workspace, members: Sequence[StudyFacts], asks_scheduler: bool
) -> Iterator[Obstacle]:
    """What the jobs say that should bring workers."""
    records = JobRecords(jobs_folder(workspace.path)).all()
    if records and asks_scheduler:
        workers: dict[str, WorkerInfo] = {}
        for facts in members:
            if facts.servers is not None:
                workers |= {worker.name: worker for worker in facts.servers.workers if worker.is_alive}
        clients = [SchedulerClient(each, limit_s=SCHEDULER_S) for each in to_ask(installed())]
        asked = Asked(path=workspace.path, queues=(), clients=clients, records={workspace.path: records})
        yield from of_jobs(asked, list(workers.values()))
    yield from of_autoscale(workspace.path)


# ------------------------------------------------------------------------------------------ of workers


def explain(asked: Asked) -> Explanation:
    """Look at servers, studies, workers and jobs, as far as they can be asked."""
    try:
        config = find_config()
    except ConfigError as error:
        return _nothing(Obstacle(what=str(error), remedy=command_line("config", "check"), kind=Kind.SERVER))
    if config is None:
        start = f"{command_line('server', 'start')}, or {command_line('config', 'create')}"
        return _nothing(
            Obstacle(
                what="no broker is configured, so no worker can get work", remedy=start, kind=Kind.SERVER
            )
        )
    unreachable = [
        Obstacle(what=reach.detail, remedy=reach.hint or command_line("doctor"), kind=Kind.SERVER)
        for _, reach in reach_all(config)
        if not reach.ok
    ]
    if unreachable:
        return _nothing(*unreachable, *of_jobs(asked, []))
    try:
        return _of_studies(asked, config)
    except ExecutionError as error:
        return _nothing(Obstacle(what=str(error), remedy=command_line("doctor"), kind=Kind.SERVER))


def _nothing(*found: Obstacle) -> Explanation:
    return Explanation(num_chunks=0, num_workers=0, obstacles=found)


def _of_studies(asked: Asked, config: Config) -> Explanation:
    workers = open_registry(config).workers()
    ours = [worker for worker in workers if served_queues(worker, config) & set(asked.queues)]
    studies = _studies(asked, config)
    found = [each for study in studies for each in of_study(facts_of(study))]
    if not studies:
        start = command_line("run", asked.path)
        found.append(Obstacle(what="no open study of yours uses these queues", remedy=start, kind=Kind.STATE))
    leaving = [worker for worker in ours if worker.is_stopping]
    if ours and len(leaving) == len(ours):
        found.append(
            Obstacle(
                what="every worker of these queues is ending", remedy=_more_workers(asked), kind=Kind.WORKERS
            )
        )
    records = {**asked.records, **({} if asked.path.is_dir() else _records_of(studies))}
    found += of_jobs(replace(asked, records=records), workers)
    found += [each for path in records for each in of_autoscale(path)]
    return Explanation(
        num_chunks=sum(len(worker.running) for worker in ours),
        num_workers=len(ours),
        obstacles=tuple(found),
    )


def of_study(facts: StudyFacts) -> list[Obstacle]:
    """What keeps more of one of several studies from running, each with the name of its workspace."""
    found = [each for each in obstacles(facts) if not each.is_normal]
    if not facts.missing:
        found.insert(0, Obstacle(what="it has ended: every task has an outcome", kind=Kind.STATE))
    name = facts.workspace.path.name
    return [each if name in each.what else replace(each, what=f"{name}: {each.what}") for each in found]


def _studies(asked: Asked, config: Config) -> list[Workspace]:
    """The study of the workspace, else the open ones on the spec's queues that can be read here."""
    if asked.path.is_dir():
        return [open_workspace(asked.path)]
    found = []
    for info in open_registry(config).studies():
        if set(info.queues) & set(asked.queues):
            with suppress(MerlinError):  # it lies where this machine cannot see it
                found.append(open_workspace(Path(info.workspace)))
    return found


def _records_of(studies: Sequence[Workspace]) -> Mapping[Path, Sequence[JobRecord]]:
    """The worker jobs of studies, such as `merlin run --autoscale` submits; without those that cannot be read."""
    found = {}
    for study in studies:
        with suppress(MerlinError):
            found[study.path] = JobRecords(jobs_folder(study.path)).all()
    return found


def _more_workers(asked: Asked) -> str:
    here = command_line("run-workers", asked.path)
    return f"{command_line('workers', 'submit', asked.path)}, or here: {here}" if asked.clients else here
