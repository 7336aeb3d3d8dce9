"""A study that was published for workers: the ledger says what has ended, and Redis what runs."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.text import count
from merlin.config.model import Config
from merlin.errors import ExecutionError
from merlin.execution.conductor import durations_of, quarantined_nodes
from merlin.execution.distributed.connect import make_client
from merlin.execution.distributed.redis_backend import RedisBackend
from merlin.execution.distributed.registry import WorkerInfo
from merlin.execution.distributed.stay import num_that_fit
from merlin.ledger.replay import replay
from merlin.plan.durations import Durations, Spread
from merlin.plan.fit import Need, need_of
from merlin.plan.job_policy import job_policy
from merlin.plan.plan import StepInstance
from merlin.plan.schedule import Scheduler
from merlin.plan.task_states import TaskCounts, sum_by_step
from merlin.plan.tasks import Outcome
from merlin.status.snapshot import CANCELLED, end_of_run, is_published
from merlin.views.queues import served_queues
from merlin.views.watch import Look, State, idle_queues
from merlin.workspace.directory import Workspace

SETTLE_S = 6.0  # for the end of a study to be written down; an owner that was killed is replaced after 4
POLL_S = 0.1


class Outstanding(Struct, frozen=True, kw_only=True):
    """What is left of a study on some queues, in seconds of slots: a task of two cores takes two slots."""

    num_startable: int  # slots for the tasks that could run now or do run
    left_s: float  # only for steps of which some task has ended, so that their time is known
    is_known: bool  # a task has ended, so that `left_s` means something
    busy_s: float  # of the tasks that have ended
    needs_s: Mapping[str, float]  # by step: what a worker must have left of its walltime; 0: not known


def slots_of(need: Need, workers: Collection[WorkerInfo]) -> float:
    """How many slots of these workers a task takes, with slots that stay idle because no further one fits."""
    able = [worker for worker in workers if num_that_fit([worker], need)]
    if not able:
        return float(need.cores)
    return sum(worker.concurrency for worker in able) / num_that_fit(able, need)


def _need_s(instance: StepInstance, spread: Spread) -> float:
    durations = Durations(instance)
    durations.learn(spread)
    return durations.need_s()


class PublishedStudy:
    """A study that was published; each call looks at it anew.

    Raises LedgerError if the ledger cannot be read; methods other than `look` raise ExecutionError if Redis does not
    answer.
    """

    def __init__(self, workspace: Workspace, config: Config) -> None:
        self._workspace, self._config, self._plan = workspace, config, workspace.plan
        backend = RedisBackend(config, make_client(config.backend), lease_s=0.0)
        self._mailbox, self._registry = backend.mailbox(self._plan.study_id), backend.registry
        self._replay = replay(workspace.ledger_dir, self._plan)
        self._counts: tuple[int, dict[str, TaskCounts]] = (-1, {})
        self._bad_nodes: tuple[int, dict[str, str]] = (-1, {})

    def look(self) -> Look:
        """The study now; trouble with Redis is one of the states."""
        self._replay.update()
        try:
            state, reason = self._state()
            workers, num_running = self._registry.workers(), self._mailbox.num_held()
            work = self._registry.open_work().get(self._plan.study_id, [])
        except ExecutionError as error:
            return Look(state="unreachable", per_step={}, reason=str(error))
        counts = self._with_running(workers)
        served = [served_queues(worker, self._config) for worker in workers if not worker.is_stopping]
        queues = {i.queue for i in self._plan.instances}
        return Look(
            state=state,
            per_step=sum_by_step(self._plan, counts),
            num_workers=sum(bool(queues & each) for each in served),
            num_running=num_running,
            reason=reason,
            idle_queues=idle_queues(self._plan, counts, set().union(*served)) if state == "running" else (),
            short_of_time=tuple(dict.fromkeys(reason for entry in work for reason in entry.waiting)),
            bad_nodes=self._of_last_run(),
        )

    def outstanding(self, queues: Collection[str], most_s: float = math.inf) -> Outstanding:
        """The work that is left on these queues, and fits into `most_s` seconds; call `look` first."""
        workers = self._registry.workers()
        counts = self._with_running(workers)
        serving = [worker for worker in workers if served_queues(worker, self._config) & set(queues)]
        ours = [i for i in self._plan.instances if i.queue in queues]
        spreads = durations_of(self._replay, self._plan)
        known: dict[str, tuple[float, int]] = {}
        for instance in ours:
            headers = [
                entry.header for entry in self._replay.entries(instance.id) if entry.header.elapsed_s > 0
            ]
            before_s, before = known.get(instance.step, (0.0, 0))
            num = sum(h.counts[Outcome.OK] + h.counts[Outcome.FAILED] for h in headers)
            busy_s = need_of(instance).cores * sum(h.elapsed_s for h in headers)
            known[instance.step] = before_s + busy_s, before + num
        missing = [i for i in ours if counts[i.id].missing]
        in_workers = [i for i in missing if job_policy(i) is None]
        needs_s = {i.step: _need_s(i, spreads.get(i.step, ())) for i in in_workers}
        left = [i for i in in_workers if needs_s[i.step] <= most_s]
        # for steps with batch jobs of their own one worker is enough: the owner, which submits them
        num_owners = int(len(in_workers) < len(missing))
        costs = [(counts[i.id].missing, *known[i.step]) for i in left]
        return Outstanding(
            num_startable=num_owners
            + sum(math.ceil(counts[i.id].startable * slots_of(need_of(i), serving)) for i in left),
            left_s=sum(tasks * seconds / num for tasks, seconds, num in costs if num),
            is_known=any(num for _, num in known.values()),
            busy_s=sum(seconds for seconds, _ in known.values()),
            needs_s=needs_s,
        )

    def settle(self) -> None:
        """Make sure that the end of the study is recorded, even if no worker is left to do it."""
        from merlin.execution.distributed.control import record_end  # heavy, and needed once

        until = time.monotonic() + SETTLE_S
        with suppress(ExecutionError):  # then a worker, or the next restart, will do it
            while is_published(self._replay) and self._is_complete() and time.monotonic() < until:
                record_end(self._workspace, self._config)
                time.sleep(POLL_S)
                self._replay.update()

    def republish(self) -> str:
        """Publish the study again, because Redis does not hold it any more; returns what was done, in words.

        Raises ExecutionError if the servers prevent it, WorkspaceError if another process does it already.
        """
        from merlin.execution.distributed.open_study import open_study  # heavy, and rarely needed

        opened = open_study(self._workspace, self._config)
        done = f", {opened.already_ok:,} tasks had ended ok" if opened.already_ok else ""
        return f"published with {count(opened.num_messages, 'message')}{done}"

    def _state(self) -> tuple[State, str]:
        """The state, and why the study ended before its end."""
        if self._is_complete():
            return "complete", ""
        reason = end_of_run(self._replay)
        if reason is not None:
            return ("dropped" if reason == CANCELLED else "stopped"), reason
        return ("running" if self._mailbox.exists() else "gone"), ""

    def _is_complete(self) -> bool:
        """Every task has an outcome; the owner writes down the end of the run soon after."""
        return not any(counts.missing for counts in self._of_ledger().values())

    def _with_running(self, workers: list[WorkerInfo]) -> dict[str, TaskCounts]:
        """Tasks by state, per step instance; `running` as these workers reported it."""
        counts = dict(self._of_ledger())
        for chunk in (c for w in workers for c in w.running if c.study == self._plan.study_id):
            if (have := counts.get(chunk.instance)) is not None:
                num = min(chunk.hi - chunk.lo, have.ready)
                counts[chunk.instance] = replace(have, ready=have.ready - num, running=have.running + num)
        return counts

    def _of_last_run(self) -> dict[str, str]:
        """The nodes that get no more tasks of the study, each with the step that showed it to be bad."""
        if self._bad_nodes[0] != self._replay.num_records:
            self._bad_nodes = self._replay.num_records, quarantined_nodes(self._replay)
        return self._bad_nodes[1]

    def _of_ledger(self) -> dict[str, TaskCounts]:
        if self._counts[0] != self._replay.num_records:
            scheduler = Scheduler(self._plan, self._replay.outcomes, num_workers=1)
            self._counts = self._replay.num_records, scheduler.counts()
        return self._counts[1]
