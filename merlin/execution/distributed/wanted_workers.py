"""The workers that a spec and the user ask for: the commands that start them, and what became of these."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.text import short_name
from merlin.batch.contract import Allocation
from merlin.batch.cores import usable_cores
from merlin.batch.environment import without
from merlin.batch.here import allocation_here, client_here, end_for_children, find_here
from merlin.batch.ranks import LaunchedRank, find_rank
from merlin.batch.registry import scheduler_of
from merlin.config.model import Config
from merlin.execution.distributed import launch
from merlin.execution.distributed.idle_watch import VARIABLE as LEAVE_WHEN_DONE
from merlin.execution.distributed.launch import Queues, SpecWorker, WorkerSelection
from merlin.execution.distributed.node_workers import CORES, NODE, place
from merlin.execution.distributed.registry import WorkerInfo
from merlin.execution.distributed.start import (
    LOGS_DIR,
    Launch,
    StartedWorker,
    pass_signals_on,
    start,
    wait_until_alive,
)
from merlin.spec.model import Document


class WorkerRequest(Struct, frozen=True, kw_only=True):
    """What the user asks for, beside the spec."""

    steps: tuple[str, ...] = ()  # (): all
    nodes: int | None = None  # instead of the spec's number
    scheduler: str = ""  # instead of the `batch.type` of the spec
    worker_args: str = ""
    level: str = "INFO"  # of the logs


class WantedWorkers(Struct, frozen=True, kw_only=True):
    """The workers that a spec and the user ask for, in the allocation that this process lives in, if any."""

    document: Document
    by_step: Queues
    request: WorkerRequest
    logs: Path
    allocation: Allocation | None = None
    rank: LaunchedRank | None = None  # of this process, if a launcher has started several

    @staticmethod
    def of(document: Document, by_step: Queues, request: WorkerRequest) -> WantedWorkers:
        """The workers outside of any allocation; `here` puts them into that of this process."""
        if request.scheduler:
            batch = document.batch.model_copy(update={"type": request.scheduler})
            document = document.model_copy(update={"batch": batch})
        logs = Path.cwd() / LOGS_DIR
        return WantedWorkers(document=document, by_step=by_step, request=request, logs=logs)

    @property
    def job(self) -> str:
        """The allocation's; "" outside of one."""
        return self.allocation.job if self.allocation else ""

    @property
    def are_started_by_others(self) -> bool:
        """Whether another process that was launched on this node starts them."""
        return self.rank is not None and bool(self.rank.local_rank)

    def here(self) -> WantedWorkers:
        """The same workers, in the allocation of this process. Raises ExecutionError as `allocation_here` does."""
        allocation = allocation_here(os.environ, client=client_here(os.environ))
        return replace(self, allocation=allocation, rank=find_rank(os.environ))

    def launches(
        self, config: Config | None, alive: Sequence[WorkerInfo]
    ) -> tuple[WorkerSelection, list[Launch]]:
        """The commands to execute, where the workers that are `alive` run on this host already."""
        host = socket.gethostname()
        environment = {**os.environ, **{k: str(v) for k, v in self.document.env.variables.items()}}
        selection = launch.select_workers(
            self.document,
            self.by_step,
            host=host,
            hosts=self.allocation.hosts if self.allocation and not self.rank else (),
            steps=self.request.steps,
            nodes=self.request.nodes,
            served={launch.plain_queue(config, q): short_name(w.name) for w in alive for q in w.queues},
            environment=environment,
        )
        taken = {short_name(worker.name).removesuffix(f".{host}") for worker in alive}
        extra_args = launch.split_args(self.request.worker_args, environment)
        named = []
        for worker in selection.start:
            named.append(launch.with_more_args(launch.with_free_name(worker, taken), extra_args))
            taken.add(named[-1].name)
        return selection, launch.launches(
            named,
            partial(self._command, config=config),
            which=shutil.which,
            logs=self.logs,
            allocation=self.allocation,
            is_launched=self.rank is not None,
        )

    def in_job(self, config: Config, num_nodes: int) -> Launch | None:
        """The one command that starts all of them on each node of a job that is still to come, of `batch.type`.

        None if only the job can tell: of hosts that `machines` names, variables in arguments, what else it starts.
        """
        scheduler, wanted = self.document.batch.type, self.document.merlin.resources.workers.values()
        has_variables = any("$" in args for args in (self.request.worker_args, *(w.args for w in wanted)))
        if has_variables or any(worker.machines for worker in wanted):
            return None
        there = replace(
            self,
            request=replace(self.request, nodes=num_nodes),
            allocation=Allocation(scheduler=scheduler, job="", num_nodes=num_nodes),
        )
        selection, found = there.launches(config, [])
        of_others = any(w.batch.type != scheduler or w.batch.launch_pre for w in selection.start)
        if of_others or len(found) != 1 or found[0].is_local or found[0].num_nodes != num_nodes:
            return None
        return found[0]

    def _command(self, worker: SpecWorker, is_elsewhere: bool, *, config: Config | None) -> list[str]:
        """The command of one worker; values that only its node knows are filled in on that node."""
        make = partial(launch.worker_command, config, worker, level=self.request.level)
        if is_elsewhere:
            return make(num_cores=CORES, place=NODE)
        if self.rank is not None:
            return make(num_cores=usable_cores(), place=place(find_here(os.environ)))
        return make(num_cores=usable_cores())

    def environment(self, config: Config, *, leave_when_done: bool) -> dict[str, str]:
        """The variables of the workers; they lead a worker to our configuration and key wherever it starts."""
        found = {**os.environ, **config.child_environment(), **end_for_children(self.allocation)}
        if self.rank is not None and self.allocation is not None:
            found = without(found, scheduler_of(self.allocation.scheduler).launch_variables)
        if leave_when_done:
            found[LEAVE_WHEN_DONE] = "1"
        return found


class StartedWorkers(Struct, frozen=True, kw_only=True):
    """The workers that were started, once all have reported, one has died, or the time was over."""

    entries: Sequence[StartedWorker]
    is_in_time: bool
    stay: Callable[[int], int] | None  # waits for their end, as `pass_signals_on` says; None: they outlive us

    @property
    def exit_code(self) -> int:
        """0 if all have reported."""
        return 0 if self.is_in_time and not any(entry.died for entry in self.entries) else 1


def start_workers(
    found: Sequence[Launch],
    workers: Callable[[], Sequence[WorkerInfo]],
    *,
    logs: Path,
    environment: Mapping[str, str],
    job: str,
    timeout_s: float,
    foreground: bool,
) -> StartedWorkers:
    """Execute the commands, and wait until all workers have reported or died, but not longer than `timeout_s`.

    `workers` returns all that have reported. In the foreground, signals are passed on to the workers from now on.
    Raises ExecutionError if the machine cannot start them.
    """
    known = workers()
    started: list[StartedWorker] = []
    stay = pass_signals_on(started) if foreground else None
    for entry in found:
        started.append(start(entry, logs=logs, environment=environment, known=known, job=job))
    in_time = wait_until_alive(started, workers, timeout_s=timeout_s)
    return StartedWorkers(entries=started, is_in_time=in_time, stay=stay)
