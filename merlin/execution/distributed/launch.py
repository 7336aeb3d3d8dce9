"""Select the workers that a spec wants on this machine, and build the command lines that start them. Pure.

An entry of `merlin.resources.workers` becomes one Celery worker here, or one per node through the launcher of
`batch.type`.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from string import Template
from typing import TYPE_CHECKING

from merlin.config.model import QUEUE_TAG
from merlin.errors import UsageError

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.spec.model import Batch, Document, Worker

APP = "merlin"  # merlin/celery.py
ALL_STEPS = "all"

Queues = Mapping[str, tuple[str, ...]]  # step -> its queues, in the order of the study


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecWorker:
    """An entry of `merlin.resources.workers` to start."""

    name: str
    queues: tuple[str, ...]  # names as in the spec
    batch: Batch  # of the worker, else of the study
    args: tuple[str, ...] = ()  # for the Celery worker, as the spec has them
    nodes: int | None = None  # of the worker, else of its batch block


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """An entry that is not started, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSelection:
    start: tuple[SpecWorker, ...]
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command that starts `num_workers` Celery workers. `note` explains a decision to the user."""

    argv: tuple[str, ...]
    num_workers: int = 1
    is_local: bool = True  # the process is the worker itself, not a launcher
    note: str = ""


def queues_by_step(document: Document) -> Queues:
    """The queues of a spec's steps. If the names contain parameters, use the plan's instances instead."""
    names = {step.name: step.run.task_queue.strip() for step in document.study}
    return {step: ("merlin" if name.lower() in ("", "none") else name,) for step, name in names.items()}


def queues_of(by_step: Queues, steps: Collection[str] = ()) -> tuple[str, ...]:
    """The queues of `steps`, or of all, each once. Raises UsageError for a step that does not exist."""
    check_steps(by_step, steps)
    return _queues(by_step, _chosen(by_step, steps))


def _queues(by_step: Queues, steps: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(q for step in steps for q in by_step[step]))


def plain_queue(config: Config | None, name: str) -> str:
    """The name of a queue in specs, from any of its names: "sim", "[merlin]_sim", "[merlin]_sim@1a2b3c4d"."""
    return (config.display_queue(name) if config else name).removeprefix(QUEUE_TAG)


def check_steps(by_step: Queues, steps: Collection[str]) -> None:
    """Raise UsageError for a step that the study does not have."""
    for step in steps:
        if step not in by_step and step != ALL_STEPS:
            raise UsageError(f"the study has no step {step!r}; it has: {', '.join(by_step)}")


def _chosen(by_step: Queues, steps: Collection[str]) -> list[str]:
    return [step for step in by_step if not steps or ALL_STEPS in steps or step in steps]


def select_workers(
    document: Document,
    by_step: Queues,
    *,
    host: str,
    steps: Collection[str] = (),
    served: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> WorkerSelection:
    """The workers to start on `host` so that `steps` (all, if none are given) are served.

    `served` maps queues to the live worker of this host that serves them: without `overlap` a queue has one worker
    per host. `environment` has the values of $NAME in the workers' arguments.

    Raises UsageError if a step does not exist, or arguments have an open quote.
    """
    check_steps(by_step, steps)
    resources = document.merlin.resources
    wanted = _chosen(by_step, steps)
    taken = dict(served or {})
    start: list[SpecWorker] = []
    skipped: list[Skipped] = []
    for name, worker in resources.workers.items():
        queues = _queues(by_step, [s for s in _chosen(by_step, worker.steps) if s in wanted])
        reason = _why_not(worker, host, queues)
        if not reason and not resources.overlap:
            owners = dict.fromkeys(taken[q] for q in queues if q in taken)
            queues = tuple(q for q in queues if q not in taken)
            if not queues:
                reason = f"its queues are served by {', '.join(owners)} (overlap: true allows more)"
        if reason:
            skipped.append(Skipped(name=name, reason=reason))
            continue
        start.append(_spec_worker(name, worker, queues, document.batch, environment or {}))
        taken.update(dict.fromkeys(queues, name))
    return WorkerSelection(start=tuple(start), skipped=tuple(skipped))


def _why_not(worker: Worker, host: str, queues: tuple[str, ...]) -> str:
    if worker.machines and not any(machine in host for machine in worker.machines):
        return f"it is for {', '.join(worker.machines)}, and this is {host}"
    return "" if queues else f"it serves only {', '.join(worker.steps)}"


def _spec_worker(
    name: str, worker: Worker, queues: tuple[str, ...], batch: Batch, environment: Mapping[str, str]
) -> SpecWorker:
    used = worker.batch or batch
    nodes = worker.nodes or used.nodes
    if nodes is not None and not isinstance(nodes, int):
        raise UsageError(f"worker {name!r}: nodes must be a number, not {nodes!r}")
    return SpecWorker(
        name=name, queues=queues, batch=used, nodes=nodes, args=split_args(worker.args, environment)
    )


def split_args(text: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Split worker arguments into words, with $NAME filled in. Raises UsageError for an open quote."""
    try:
        return tuple(shlex.split(Template(text).safe_substitute(environment)))
    except ValueError as error:
        raise UsageError(f"cannot read the worker arguments {text!r}: {error}") from error


def with_free_name(worker: SpecWorker, taken: Collection[str]) -> SpecWorker:
    """The worker with its name, or with NAME-2, NAME-3 …, if other workers of this host have that name."""
    name, number = worker.name, 2
    while name in taken:
        name, number = f"{worker.name}-{number}", number + 1
    return replace(worker, name=name)


def worker_command(
    config: Config | None,
    worker: SpecWorker,
    *,
    extra_args: Sequence[str] = (),
    level: str = "INFO",
    num_cores: int | None = None,
) -> list[str]:
    """The command that starts one Celery worker. The arguments of the spec have priority over ours.

    `num_cores` becomes the concurrency; with None the machine where the worker starts decides. `extra_args` follow the
    arguments of the spec, so they have priority. Without a config the queues have no namespace; such a command is only
    for display.
    """
    theirs = [*worker.args, *extra_args]
    queues = [config.queue_name(q) if config else QUEUE_TAG + q for q in worker.queues]
    line = [sys.executable, "-P", "-m", "celery", "-A", APP, "worker"]
    if not _has(theirs, "-n", "--hostname"):
        line += ["-n", f"{worker.name}.%h"]
    line += ["-Q", ",".join(queues)]
    if not _has(theirs, "-P", "--pool"):
        line += ["--pool", "threads"]
    if num_cores is not None and not _has(theirs, "-c", "--concurrency", "--autoscale"):
        line += ["--concurrency", str(num_cores)]
    if not _has(theirs, "-l", "--loglevel"):
        line += ["-l", level]
    return [*line, *theirs]


def _has(args: Sequence[str], short: str, *long: str) -> bool:
    """Return whether an option is in `args`: "-l INFO", "-lINFO", "--loglevel INFO" or "--loglevel=INFO"."""
    return any(
        (word.startswith(short) and not word.startswith("--")) or word.partition("=")[0] in long
        for word in args
    )


def launch_line(
    worker: SpecWorker,
    command: Sequence[str],
    *,
    which: Callable[[str], str | None],
    num_allocated: int | None = None,
) -> Launch:
    """Build the command to start: `command` itself, or once per node through the scheduler's launcher.

    `num_allocated` is the number of nodes of the current allocation; it is used if the spec has no number. If the
    launcher is not installed, the worker starts on this machine.
    """
    batch = worker.batch
    num_nodes = worker.nodes or num_allocated or 1
    launcher = _launcher(worker, num_nodes)
    note = ""
    if launcher and which(launcher[0]) is None:
        note = f"{launcher[0]} is not installed here: {worker.name} starts on this machine alone"
        launcher = []
    num_workers = num_nodes if launcher else 1
    if launcher and batch.launch_args:
        launcher += shlex.split(batch.launch_args)
    argv = [*launcher, *command]
    if launcher and batch.launch_pre:  # text of the user, for the user's shell
        argv = [*shlex.split(batch.shell), "-c", f"{batch.launch_pre} {shlex.join(argv)}"]
    return Launch(argv=tuple(argv), num_workers=num_workers, is_local=not launcher, note=note)


def _launcher(worker: SpecWorker, num_nodes: int) -> list[str]:
    """The launcher's words before the command; empty for a worker on this machine."""
    batch, n = worker.batch, str(num_nodes)
    if batch.type == "local":
        return []
    if batch.worker_launch:
        return shlex.split(batch.worker_launch)
    match batch.type:
        case "slurm":
            flags = (("-A", batch.bank), ("-p", batch.queue), ("-t", batch.walltime))
            given = [word for flag, value in flags if value for word in (flag, str(value))]
            return ["srun", "-N", n, "-n", n, *given]
        case "flux" if batch.flux_exec_workers is not False:
            # not `flux run`, which would occupy the cores that the workers' tasks need
            if batch.flux_exec:
                return shlex.split(batch.flux_exec)
            flux = f"{batch.flux_path.rstrip('/')}/flux" if batch.flux_path else "flux"
            ranks = ["-r", f"0-{worker.nodes - 1}"] if worker.nodes else []  # else everywhere
            return [flux, "exec", *ranks]
        case "lsf" if worker.nodes:  # a worker under jsrun cannot use jsrun itself, so only if asked for
            return ["jsrun", "-a", "1", "-c", "ALL_CPUS", "-g", "ALL_GPUS", "--bind=none", "-n", n]
        case "pbs":
            return ["mpiexec", "-n", n]
    return []


def num_allocated_nodes(environment: Mapping[str, str]) -> int | None:
    """The number of nodes of the current allocation; None outside of one."""
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "PBS_NUM_NODES"):
        if environment.get(name, "").isdecimal():
            return int(environment[name])
    if hosts := set(environment.get("LSB_HOSTS", "").split()):
        return max(1, len(hosts) - 1)  # one of them launches
    if hosts_and_slots := environment.get("LSB_MCPU_HOSTS", "").split():
        return max(1, len(hosts_and_slots) // 2 - 1)
    return None
