"""One step: how far it is, what its tasks need, what they wait for, and what keeps more of them from running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from merlin.base.text import count
from merlin.batch.walltime import as_clock
from merlin.plan.durations import walltime_s
from merlin.plan.fit import need_of
from merlin.plan.job_policy import job_policy
from merlin.plan.outcome_counts import OutcomeCounts, summed
from merlin.plan.plan import StepInstance, StepKind
from merlin.status.failures import group_failures
from merlin.views.explain import StudyExplanation
from merlin.views.obstacle import Obstacle
from merlin.views.study_facts import StudyFacts


class FailureCause(Struct, frozen=True, kw_only=True):
    """Tasks of the step that failed in the same way; see `FailureGroup`."""

    group: str  # the id of the group
    count: int
    what: str  # "exit code 3: no license <path>"


class StepStory(OutcomeCounts, frozen=True, kw_only=True):
    """A step of a study, with its extensions."""

    step: str
    queue: str
    kind: str
    ready: int  # tasks that could run now or do run
    waiting: int  # tasks that wait for other steps
    running: int | None  # chunks; None: a run on one machine does not tell
    num_workers: int | None  # on its queue; None: not known, or it needs none
    needs: str  # of each task
    after: tuple[str, ...]  # what it depends on, and how much of that is open
    causes: tuple[FailureCause, ...]  # why tasks failed, the most frequent cause first
    obstacles: tuple[Obstacle, ...]

    @property
    def exit_code(self) -> int:
        if self.planned == self.ok:
            return 0
        return 1 if not self.ready + self.waiting else int(any(not each.is_normal for each in self.obstacles))


def step_story(explained: StudyExplanation, step: str) -> StepStory:
    """The story of a step (or step instance) of an explained study."""
    chosen = [(facts, i) for facts in explained.members for i in facts.instances(step)]
    counts = [facts.counts[instance.id] for facts, instance in chosen]
    first, servers = chosen[0][1], chosen[0][0].servers
    return StepStory(
        step=step,
        queue=first.queue,
        kind=str(first.kind),
        **summed(counts),
        ready=sum(c.startable for c in counts),
        waiting=sum(c.waiting for c in counts),
        running=_running(chosen),
        num_workers=None if servers is None else len(servers.serving(first.queue)),
        needs=_needs(first),
        after=tuple(_after(chosen)),
        causes=tuple(_causes(chosen, step)) if any(c.failed for c in counts) else (),
        obstacles=tuple(each for each in explained.obstacles if each.step in ("", first.step)),
    )


def _running(chosen: Sequence[tuple[StudyFacts, StepInstance]]) -> int | None:
    """Chunks that workers hold, or that are batch jobs which run."""
    num, is_known = 0, False
    for facts, instance in chosen:
        if facts.servers is not None:
            is_known = True
            num += sum(bool(h.worker) and h.chunk.instance == instance.id for h in facts.handed)
        jobs = [job for job in facts.step_jobs if job.chunk.instance == instance.id]
        is_known = is_known or bool(jobs)
        num += sum(job.state == "running" for job in jobs)
    return num if is_known else None


def _needs(instance: StepInstance) -> str:
    """Cores, GPUs, nodes and time of each task."""
    policy, limit_s = job_policy(instance), walltime_s(instance.resources)
    need = need_of(instance)
    parts = [count(need.cores, "core")]
    if need.gpus:
        parts.append(f"{need.gpus:g} GPU{'s' * (need.gpus > 1)}")
    if need.nodes > 1:
        parts.append(count(need.nodes, "node"))
    if limit_s is not None:
        parts.append(f"up to {as_clock(limit_s)}")
    if policy is not None:
        parts = [f"a batch job of {policy.scheduler} for {count(policy.tasks_per_job, 'task')}", *parts[1:]]
    return ", ".join(parts)


def _after(chosen: Sequence[tuple[StudyFacts, StepInstance]]) -> list[str]:
    """What the step depends on, and how much of that has not ended."""
    open_tasks: Counter[tuple[str, str]] = Counter()
    for facts, instance in chosen:
        for edge in instance.edges if instance.kind is not StepKind.MANIFEST else ():
            source = facts.workspace.instance(edge.source)
            open_tasks[source.step, edge.kind] += facts.counts[source.id].missing
    words = {"same": "the same sample in {}", "all": "all of {}", "block": "the rows of its shard from {}"}
    out = []
    for (name, kind), left in open_tasks.items():
        state = f"{count(left, 'task')} open" if left else "ended"
        out.append(f"{words[kind].format(name)}: {state}")
    return out


def _causes(chosen: Sequence[tuple[StudyFacts, StepInstance]], step: str) -> list[FailureCause]:
    """Why tasks of the step failed."""
    studies = {facts.workspace.path: facts.workspace for facts, _ in chosen}.values()
    groups = [g for study in studies for g in group_failures(study, steps=(step,), with_ranges=False)]
    groups.sort(key=lambda group: -group.count)
    return [
        FailureCause(group=g.id, count=g.count, what=f"{g.exit_class}: {g.signature or g.cause}")
        for g in groups
    ]
