"""Select the workers that a spec wants, and build the command lines that start them. Pure.

An entry of `merlin.resources.workers` becomes one Celery worker here, or one per node through the launcher of
`batch.type`: one program on each node starts all that belong there (see `node_workers`).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from merlin.batch.registry import scheduler_of
from merlin.config.model import QUEUE_TAG
from merlin.errors import UsageError
from merlin.execution.distributed import node_workers
from merlin.execution.distributed.start import Launch

if TYPE_CHECKING:
    from merlin.batch.contract import Allocation, Scalar
    from merlin.config.model import Config
    from merlin.spec.model import Batch, Document, Worker

APP = "merlin"  # merlin/celery.py
ALL_STEPS = "all"
OF_ALLOCATIONS = ("bank", "queue", "walltime", "reservation", "qos")

Queues = Mapping[str, tuple[str, ...]]  # step -> its queues, in the order of the study


class SpecWorker(Struct, frozen=True, kw_only=True):
    """An entry of `merlin.resources.workers` to start."""

    name: str
    queues: tuple[str, ...]  # names as in the spec
    batch: Batch  # of the worker, else of the study
    args: tuple[str, ...] = ()  # for the Celery worker
    nodes: int | None = None  # of the worker, else of its batch block
    hosts: tuple[str, ...] = ()  # of the allocation, those that `machines` allows; (): all
    starts_programs: bool = False  # a step of it uses $(LAUNCHER)
    note: str = ""  # for the user, about its arguments


class Skipped(Struct, frozen=True, kw_only=True):
    """An entry that is not started, and why."""

    name: str
    reason: str


class WorkerSelection(Struct, frozen=True, kw_only=True):
    start: tuple[SpecWorker, ...]
    skipped: tuple[Skipped, ...]


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
    hosts: Sequence[str] = (),
    steps: Collection[str] = (),
    nodes: int | None = None,
    served: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> WorkerSelection:
    """The workers to start on `host`, or on the `hosts` of an allocation, so that `steps` (or all) are served.

    With `nodes` they start on so many, whatever the batch block says. `served` maps queues to the live worker of this
    host that serves them: without `overlap` a queue has one worker per host. `environment` has the values of $NAME in
    the workers' arguments.

    Raises UsageError if a step does not exist, or arguments have an open quote.
    """
    check_steps(by_step, steps)
    resources = document.merlin.resources
    wanted = _chosen(by_step, steps)
    taken = dict(served or {})
    start, skipped = list[SpecWorker](), list[Skipped]()
    for name, worker in resources.workers.items():
        queues = _queues(by_step, [s for s in _chosen(by_step, worker.steps) if s in wanted])
        reason = _why_not(worker, (host, *hosts), queues)
        if not reason and not resources.overlap:
            owners = dict.fromkeys(taken[q] for q in queues if q in taken)
            queues = tuple(q for q in queues if q not in taken)
            if not queues:
                reason = f"its queues are served by {', '.join(owners)} (overlap: true allows more)"
        if reason:
            skipped.append(Skipped(name=name, reason=reason))
            continue
        start.append(
            SpecWorker(
                name=name,
                queues=queues,
                batch=worker.batch or document.batch,
                nodes=_nodes(name, worker, document.batch, nodes),
                args=split_args(worker.args, environment or {}),
                hosts=_allowed(worker, hosts),
                starts_programs=_starts_programs(document, by_step, queues),
            )
        )
        taken.update(dict.fromkeys(queues, name))
    return WorkerSelection(start=tuple(start), skipped=tuple(skipped))


def _starts_programs(document: Document, by_step: Queues, queues: Collection[str]) -> bool:
    served = {step for step, names in by_step.items() if set(names) & set(queues)}
    scripts = [(step.run.cmd, step.run.restart) for step in document.study if step.name in served]
    return any("LAUNCHER)" in (text or "") for pair in scripts for text in pair)


def _allowed(worker: Worker, hosts: Sequence[str]) -> tuple[str, ...]:
    """The hosts that `machines` names."""
    return tuple(host for host in hosts if any(machine in host for machine in worker.machines))


def _why_not(worker: Worker, hosts: Sequence[str], queues: tuple[str, ...]) -> str:
    if worker.machines and not _allowed(worker, hosts):
        return f"it is for {', '.join(worker.machines)}, and this is {', '.join(dict.fromkeys(hosts))}"
    return "" if queues else f"it serves only {', '.join(worker.steps)}"


def _nodes(name: str, worker: Worker, batch: Batch, given: int | None) -> int | None:
    nodes = worker.nodes or given or (worker.batch or batch).nodes
    if nodes is not None and not isinstance(nodes, int):
        raise UsageError(f"worker {name!r}: nodes must be a number, not {nodes!r}")
    return nodes if nodes is None or given is None else min(nodes, given)


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


def with_more_args(worker: SpecWorker, more: Sequence[str]) -> SpecWorker:
    """The worker with further arguments, which have priority over its own, and a fixed number of tasks at once.

    A pool of threads cannot grow: `--autoscale MAX,MIN` becomes `--concurrency MAX`, and as in Celery no other counts.
    """
    kept, given = list[str](), ""
    words = iter((*worker.args, *more))
    for word in words:
        option, has_value, value = word.partition("=")
        if option == "--autoscale":
            given = value if has_value else next(words, "")
        else:
            kept.append(word)
    try:
        size = max(map(int, given.split(",")))
    except ValueError:  # none is given, or Celery says what is wrong with it
        return replace(worker, args=(*worker.args, *more))
    note = f"worker {worker.name}: --autoscale {given} means --concurrency {size} here"
    return replace(worker, args=(*kept, "--concurrency", str(size)), note=note)


def worker_command(
    config: Config | None,
    worker: SpecWorker,
    *,
    level: str = "INFO",
    num_cores: int | str | None = None,
    place: str = "%h",
) -> list[str]:
    """The command that starts one Celery worker. Its own arguments have priority over ours.

    `num_cores` becomes the concurrency; with None Celery decides. The name ends with `place`. Without a config the
    queues have no namespace; such a command is only for display.
    """
    theirs = worker.args
    queues = [config.queue_name(q) if config else QUEUE_TAG + q for q in worker.queues]
    line = [sys.executable, "-P", "-m", "merlin.celery", "-A", APP, "worker"]
    if not _has(theirs, "-n", "--hostname"):
        line += ["-n", f"{worker.name}.{place}"]
    line += ["-Q", ",".join(queues)]
    if not _has(theirs, "-P", "--pool"):
        line += ["--pool", "threads"]
    if num_cores is not None and not _has(theirs, "-c", "--concurrency"):
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


def launches(
    workers: Sequence[SpecWorker],
    command: Callable[[SpecWorker, bool], Sequence[str]],
    *,
    which: Callable[[str], str | None],
    logs: Path,
    allocation: Allocation | None = None,
    is_launched: bool = False,
) -> list[Launch]:
    """The commands to start: a worker's own, or one that starts all workers with the same launcher on each node.

    If this process is one of several that a launcher has started (`is_launched`), each of them starts its own.

    `command` makes the command of one worker, which starts here or (True) on other nodes. Where a launcher is not
    installed, its workers start on this machine.
    """
    here: list[Launch] = []
    # by what one command has for all: shell, commands before, nodes, launcher
    shared: dict[tuple[str, str, int, tuple[str, ...]], list[SpecWorker]] = {}
    for worker in workers:
        words = [] if is_launched else _launcher(worker, allocation)
        if words and which(words[0]) is not None:
            before, num_nodes = worker.batch.launch_pre or "", _num_nodes(worker, allocation)
            shared.setdefault((worker.batch.shell, before, num_nodes, tuple(words)), []).append(worker)
            continue
        notes = filter(None, (worker.note, _why_here(worker, allocation, words)))
        here.append(
            Launch(
                argv=tuple(command(worker, False)),
                queues={worker.name: worker.queues},
                note="\n".join(notes),
            )
        )
    for (shell, before, num_nodes, launcher), group in shared.items():
        argv = [*launcher, *node_workers.command({w.name: command(w, True) for w in group}, logs)]
        if before:  # text of the user, for the user's shell
            argv = [*shlex.split(shell), "-c", f"{before} {shlex.join(argv)}"]
        queues = {worker.name: worker.queues for worker in group}
        note = "\n".join(worker.note for worker in group if worker.note)
        here.append(Launch(argv=tuple(argv), queues=queues, num_nodes=num_nodes, is_local=False, note=note))
    return here


def _why_here(worker: SpecWorker, allocation: Allocation | None, words: Sequence[str]) -> str:
    """The note to users why a worker starts on this machine alone."""
    if words:
        return f"{words[0]} is not installed here: {worker.name} starts on this machine alone"
    if _has_to_launch(worker, allocation) and allocation is not None and allocation.num_nodes > 1:
        return (
            f"{worker.name} starts on this host alone, because its steps use $(LAUNCHER), which does not work "
            f"in a worker that {scheduler_of(worker.batch.type).programs[-1]} has started"
        )
    return ""


def _has_to_launch(worker: SpecWorker, allocation: Allocation | None) -> bool:
    """Return whether its programs start from the first host of the allocation, and from no other place."""
    scheduler = scheduler_of(worker.batch.type)
    is_inside = allocation is not None and allocation.scheduler == scheduler.system
    return is_inside and worker.starts_programs and not scheduler.launcher_nests


def _num_nodes(worker: SpecWorker, allocation: Allocation | None) -> int:
    return worker.nodes or len(worker.hosts) or (allocation.num_nodes if allocation else 1)


def _launcher(worker: SpecWorker, allocation: Allocation | None) -> list[str]:
    """The launcher's words before the command; empty for a worker on this machine."""
    scheduler, batch = scheduler_of(worker.batch.type), worker.batch
    settings: dict[str, Scalar] = {
        key: value for key, value in batch.model_dump().items() if isinstance(value, str | int | float)
    }
    num_nodes = worker.nodes or len(worker.hosts) or None
    if _has_to_launch(worker, allocation) and not batch.worker_launch:
        return []
    if allocation is not None and allocation.scheduler == scheduler.system:
        for key in OF_ALLOCATIONS:
            settings.pop(key, None)  # the request has them already
        num_nodes = num_nodes or allocation.num_nodes
    words = scheduler.workers_command(num_nodes, settings, worker.hosts)
    return [*words, *shlex.split(batch.launch_args or "")] if words else []
