"""The worker jobs that a spec and the user ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from merlin.batch.contract import JobRequest
from merlin.batch.job_records import JobRecords
from merlin.batch.registry import installed, scheduler_of
from merlin.config.model import Config
from merlin.errors import UsageError
from merlin.execution.distributed.launch import Queues, queues_of
from merlin.execution.distributed.start import Launch
from merlin.execution.distributed.wanted_workers import WantedWorkers, WorkerRequest
from merlin.execution.distributed.worker_jobs import WorkerJobs, exported_variables, jobs_folder, walltime_of
from merlin.spec.model import Batch, Document

# the words after `python -m` of the program that starts a launch in a job, if these servers answer
Program = Callable[[Sequence[str], Launch], Sequence[str]]


class JobOptions(Struct, frozen=True, kw_only=True):
    """What the user asks for, beside the spec; "" and None stand for what the spec says."""

    nodes: int | None = None
    walltime: str = ""
    queue: str = ""
    bank: str = ""
    scheduler: str = ""
    steps: tuple[str, ...] = ()
    worker_args: str = ""
    assignments: tuple[str, ...] = ()
    level: str = "INFO"

    @property
    def words(self) -> tuple[str, ...]:
        """The options that run-workers has, too, as words of a command line."""
        words = ["--steps", *self.steps] if self.steps else []
        words += ["--worker-args", self.worker_args] if self.worker_args else []
        return (*words, *(("--vars", *self.assignments) if self.assignments else ()))


class WantedJobs(Struct, frozen=True, kw_only=True):
    """The worker jobs of a spec or workspace."""

    path: Path  # as it was given
    document: Document
    queues: tuple[str, ...]
    jobs: WorkerJobs
    options: JobOptions

    def request(self) -> JobRequest:
        """The next job. Raises UsageError."""
        num_nodes = nodes_of(self.document.batch, self.options)
        return self.jobs.request(num_nodes, walltime_of(self.jobs.batch, self.options.walltime))


def nodes_of(batch: Batch, options: JobOptions) -> int:
    """Nodes of a job. Raises UsageError."""
    nodes = options.nodes or batch.nodes or 1
    if not isinstance(nodes, int):
        raise UsageError(f"batch: nodes must be a number, not {nodes!r}; or give --nodes")
    return nodes


def require_jobs(path: Path, name: str, *, other: str = "") -> None:
    """Raise UsageError where `name` is no scheduler; `other` is an option that names one, if there is any."""
    if scheduler_of(name).programs:
        return
    known = (installed() or ["slurm"])[0]
    advice = f"or give {other}{known}" if other else f"as {known}"
    raise UsageError(
        f"{path} says batch.type {name}, where there are no jobs; set it to the scheduler, {advice}"
    )


def wanted_jobs(
    path: Path,
    document: Document,
    by_step: Queues,
    options: JobOptions,
    config: Config | None,
    program: Program,
) -> WantedJobs:
    """What the options mean for a spec or workspace. Raises UsageError where no scheduler is chosen."""
    name = options.scheduler or document.batch.type
    require_jobs(path, name, other="--scheduler ")
    given = {key: value for key in ("queue", "bank") if (value := getattr(options, key))}
    workers = WantedWorkers.of(
        document,
        by_step,
        WorkerRequest(
            steps=options.steps, scheduler=name, worker_args=options.worker_args, level=options.level
        ),
    )
    jobs = WorkerJobs(
        target=path.absolute(),
        study=document.description.name,
        scheduler=scheduler_of(name),
        batch=document.batch.model_copy(update=given),
        words=options.words,
        exported=exported_variables(config),
        records=JobRecords(jobs_folder(path)),
        directory=Path.cwd(),
        level=options.level,
        direct_words=partial(_direct_words, workers, config, program),
    )
    queues = queues_of(by_step, options.steps)
    return WantedJobs(path=path, document=document, queues=queues, jobs=jobs, options=options)


def _direct_words(
    workers: WantedWorkers, config: Config | None, program: Program, num_nodes: int
) -> Sequence[str]:
    """The words after `python -m` for a job of `num_nodes` nodes; () if only the job knows what to start."""
    launch = workers.in_job(config, num_nodes) if config else None
    if config is None or launch is None:
        return ()
    return program(list(dict.fromkeys([config.broker.address, config.backend.address])), launch)
