"""The tasks of a running study by state, and how its step instances wait for each other.

Run-length coded, so it grows with the number of *changes* between neighbouring tasks, not with the number of tasks.
The states of a task::

    waiting --> ready --> running --> ok | failed | failed softly
       |          ^          |
       |          +- queued <+   handed back, to run again: deferred, interrupted, or its worker was lost
       +--> skipped              what it depends on did not end ok

A task fails softly by its own choice (exit code 101): it counts as failed, and what depends on it runs all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from msgspec import Struct, field

from merlin.errors import ExecutionError
from merlin.plan.chunking import ChunkSizer, StepPace
from merlin.plan.durations import Durations
from merlin.plan.fit import Need, need_of
from merlin.plan.job_policy import JobPolicy, job_policy
from merlin.plan.plan import Plan, StepInstance, StepKind
from merlin.plan.runs import RunMap
from merlin.plan.tasks import ENDED, Chunk, Outcome

OK, FAILED, SKIPPED, SOFT_FAILED = (
    int(o) for o in (Outcome.OK, Outcome.FAILED, Outcome.SKIPPED, Outcome.SOFT_FAILED)
)
WAITING, READY, QUEUED, RUNNING = 10, 11, 12, 13
NOT_ENDED = (WAITING, READY, QUEUED, RUNNING)
STATE_NAMES = {
    OK: "ok", FAILED: "failed", SKIPPED: "skipped", SOFT_FAILED: "soft_failed",
    WAITING: "waiting", READY: "ready", QUEUED: "queued", RUNNING: "running",
}  # fmt: skip


class TaskCounts(Struct, frozen=True, kw_only=True):
    """Tasks of one step instance by state; planned is the sum of the others."""

    planned: int
    ok: int
    failed: int  # softly or not
    skipped: int
    running: int
    ready: int  # could run now
    waiting: int  # for another step
    queued: int  # to run again, perhaps after a delay
    soft_failed: int = 0  # of those that failed

    @property
    def done(self) -> int:
        """Tasks that have ended, one way or another."""
        return self.ok + self.failed + self.skipped

    @property
    def missing(self) -> int:
        return self.planned - self.done

    @property
    def startable(self) -> int:
        """Tasks that could run now, or do run."""
        return self.ready + self.queued + self.running


def all_tasks(several: Collection[TaskCounts]) -> TaskCounts:
    """The counts of several steps or step instances, added up."""
    names = TaskCounts.__struct_fields__
    return TaskCounts(**{name: sum(getattr(counts, name) for counts in several) for name in names})


def sum_by_step(plan: Plan, counts: Mapping[str, TaskCounts]) -> dict[str, TaskCounts]:
    """Counts per step over its instances, in the order of the plan."""
    return {
        step: all_tasks([counts[instance.id] for instance in instances])
        for step, instances in plan.by_step().items()
    }


class SourceGroup:
    """What one target waits for as a unit (an `all` entry): satisfied when every source has ended completely."""

    __slots__ = ("name", "num_open", "sources", "target")

    def __init__(self, target: InstanceState, name: str) -> None:
        self.target, self.name = target, name
        self.sources: list[InstanceState] = []
        self.num_open = 0

    def passes(self) -> bool:
        """True if anything of the group may flow downstream."""
        if not any(source.instance.num_tasks for source in self.sources):
            return True
        return any(s.num_passing for s in self.sources)


class QueueReady(Struct):
    """What the workers of a queue could run now, of all step instances."""

    num: int = 0  # tasks in the state READY


class InstanceState(Struct):
    """One step instance while the study runs."""

    instance: StepInstance
    need: Need  # of each of its tasks
    rank: tuple[int, int, int]  # the smallest runs first
    sizer: ChunkSizer
    tasks: RunMap
    num: dict[int, int]  # tasks per state
    durations: Durations  # of the tasks of its step
    queue_ready: QueueReady  # of its queue
    jobs: JobPolicy | None = None  # its chunks become batch jobs; None: workers run them
    cursor: int = 0  # no task below it is ready
    collect_only: RunMap | None = None  # where the values of tasks lie that are only collected: `FROM_FILES`
    requeue: deque[Chunk] = field(default_factory=deque)
    is_active: bool = False  # it has an entry in the scheduler's heap
    num_open_groups: int = 0
    groups: list[SourceGroup] = field(default_factory=list)
    same_sources: list[InstanceState] = field(default_factory=list)
    same_targets: list[InstanceState] = field(default_factory=list)
    block_sources: list[InstanceState] = field(default_factory=list)
    block_targets: list[InstanceState] = field(default_factory=list)
    member_of: list[SourceGroup] = field(default_factory=list)

    @property
    def need_s(self) -> float:
        """The seconds that a worker must have left to start a task; 0 if not known."""
        return self.durations.need_s()

    @property
    def num_elsewhere(self) -> int:
        """Tasks of other instances that the workers of its queue could run now."""
        return self.queue_ready.num - self.num[READY]

    @property
    def continues(self) -> bool:
        return self.instance.on_failure == "continue"

    @property
    def passing(self) -> tuple[int, ...]:
        """How a task has to end for what depends on it to run."""
        return (OK, SOFT_FAILED, FAILED) if self.continues else (OK, SOFT_FAILED)

    @property
    def num_passing(self) -> int:
        return sum(self.num[state] for state in self.passing)

    @property
    def num_failed(self) -> int:
        return self.num[FAILED] + self.num[SOFT_FAILED]

    @property
    def is_ended(self) -> bool:
        return self.num[OK] + self.num_failed + self.num[SKIPPED] == self.instance.num_tasks

    def counts(self) -> TaskCounts:
        return TaskCounts(
            planned=self.instance.num_tasks,
            ok=self.num[OK],
            failed=self.num_failed,
            soft_failed=self.num[SOFT_FAILED],
            skipped=self.num[SKIPPED],
            running=self.num[RUNNING],
            ready=self.num[READY],
            waiting=self.num[WAITING],
            queued=self.num[QUEUED],
        )

    def move(self, lo: int, hi: int, state: int) -> None:
        """Put [lo, hi) into `state` and keep the counts."""
        num_ready = self.num[READY]
        for a, b, old in self.tasks.runs(lo, hi):
            self.num[old] -= b - a
        self.num[state] += hi - lo
        self.queue_ready.num += self.num[READY] - num_ready
        self.tasks.set(lo, hi, state)
        if state == READY and lo < self.cursor:
            self.cursor = lo


def build_states(
    plan: Plan, outcomes: Mapping[str, RunMap], collect_only: Mapping[str, RunMap] | None = None
) -> dict[str, InstanceState]:
    """The states of all step instances, by id, with the outcomes that the ledger has.

    `collect_only`: where the values of tasks lie that are collected anew (see `FROM_FILES`). Raises ExecutionError.
    """
    states: dict[str, InstanceState] = {}
    depth: dict[str, int] = {}
    durations = {instance.step: Durations(instance) for instance in plan.instances}
    paces = {instance.step: StepPace() for instance in plan.instances}
    ready = {instance.queue: QueueReady() for instance in plan.instances}
    for index, instance in enumerate(plan.instances):
        depth[instance.id] = 1 + max((depth[e.source] for e in instance.edges), default=-1)
        gathers = instance.kind in (StepKind.AGGREGATE, StepKind.MANIFEST)
        tasks = _tasks_of(instance, outcomes.get(instance.id))
        jobs = job_policy(instance)
        states[instance.id] = state = InstanceState(
            instance=instance,
            need=need_of(instance),
            rank=(-int(gathers), -depth[instance.id], index),
            sizer=ChunkSizer(instance, None if jobs is None else jobs.tasks_per_job, paces[instance.step]),
            jobs=jobs,
            tasks=tasks,
            num=dict.fromkeys(STATE_NAMES, 0) | tasks.counts(),
            durations=durations[instance.step],
            queue_ready=ready[instance.queue] if jobs is None else QueueReady(),
            cursor=instance.num_tasks,
            collect_only=(collect_only or {}).get(instance.id),
        )
        _connect(state, states)
    return states


def _tasks_of(instance: StepInstance, outcomes: RunMap | None) -> RunMap:
    """The state of every task as the ledger has it; interrupted tasks wait as if never started."""
    tasks = RunMap(instance.num_tasks, WAITING)
    if outcomes is not None:
        if outcomes.size != tasks.size:
            raise ExecutionError(
                f"the ledger has {outcomes.size} tasks of {instance.id}, the plan {tasks.size}"
            )
        for a, b, value in outcomes.runs():
            if value in ENDED:
                tasks.set(a, b, value)
    return tasks


def _connect(target: InstanceState, states: dict[str, InstanceState]) -> None:
    groups: dict[str, SourceGroup] = {}
    for edge in target.instance.edges:
        source = states[edge.source]
        if edge.kind == "same":
            if source.instance.num_tasks != target.instance.num_tasks:
                raise ExecutionError(
                    f"{target.instance.id} and {edge.source} differ in their number of tasks"
                )
            target.same_sources.append(source)
            source.same_targets.append(target)
        elif edge.kind == "block":
            source.block_targets.append(target)
        else:
            group = groups.setdefault(edge.group, SourceGroup(target, edge.group))
            group.sources.append(source)
            group.num_open += 1
            source.member_of.append(group)
    target.groups = list(groups.values())
    target.num_open_groups = len(groups)
    if any(edge.kind == "block" for edge in target.instance.edges) and target.instance.aggregate:
        target.block_sources = [states[id] for id in target.instance.aggregate.sources]
