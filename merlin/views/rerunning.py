"""Tasks that somebody wants to run again: which ones are meant, and what runs with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from merlin.base.ranges import Range, merged, total, within
from merlin.errors import UsageError
from merlin.execution.task_files import is_finished
from merlin.ledger.replay import replay
from merlin.plan.plan import StepInstance
from merlin.plan.rerun import tasks_to_rerun
from merlin.plan.revise_extension import saw_what_is_made
from merlin.plan.runs import RunMap
from merlin.plan.tasks import NO_OUTCOME, Outcome
from merlin.status.failures import failed_tasks
from merlin.status.sql import select_tasks
from merlin.workspace.directory import Workspace, shown_together
from merlin.workspace.revisions import plans_of

Tasks = dict[str, list[Range]]  # by step instance


class Choice(Struct, frozen=True, kw_only=True):
    """The tasks for which everything holds that is given."""

    where: str = ""  # a condition over the view `tasks` of `merlin sql`
    failed: bool = False
    groups: tuple[str, ...] = ()  # of failures, by their ids
    steps: tuple[str, ...] = ()
    samples: tuple[Range, ...] = ()  # half-open ranges of sample ids

    @property
    def is_empty(self) -> bool:
        return not (self.where or self.failed or self.groups or self.steps or self.samples)


class RerunStep(Struct, frozen=True, kw_only=True):
    """How many tasks of one step run again."""

    step: str
    chosen: int
    others: int  # they used results of chosen tasks, or made files that chosen tasks need and that are gone


class Rerun(Struct, frozen=True, kw_only=True):
    """What would run again of one study or extension."""

    workspace: Workspace
    again: Tasks  # outcomes to forget
    steps: tuple[RerunStep, ...]  # in the order of the plan; those with nothing are left out
    missing: int  # tasks without an outcome, which run in any case

    @property
    def num_tasks(self) -> int:
        return sum(step.chosen + step.others for step in self.steps)


def reruns(workspace: Workspace, choice: Choice) -> list[Rerun]:
    """What would run again of a study and its extensions; a member without such tasks is left out.

    Raises UsageError for a condition that cannot be decided, and for unknown samples or groups of failures.
    """
    studies = shown_together(workspace)
    if choice.samples:
        _require_samples(studies, choice.samples)
    found = select_tasks(workspace, choice.where) if choice.where else None
    out: list[Rerun] = []
    for study in studies:
        chosen = _chosen(study, choice)
        if found is not None:
            chosen = _both(chosen, found.get(study.plan.extension, {}))
        stale = saw_what_is_made(study.plan, studies[0].plan, [rerun.again.keys() for rerun in out])
        out.append(_rerun(study, chosen, stale))
    if choice.groups:
        _require_groups(studies, choice)
    return [rerun for rerun in out if rerun.num_tasks]


def _chosen(study: Workspace, choice: Choice) -> Tasks:
    if choice.failed or choice.groups:
        tasks = failed_tasks(study, groups=choice.groups, steps=choice.steps)
    else:
        tasks = {
            i.id: [(0, i.num_tasks)]
            for i in study.plan.instances
            if not choice.steps or i.step in choice.steps
        }
    if choice.samples:
        first = study.first_sample
        ours = {
            i.id: [(max(0, lo - first), min(i.num_tasks, hi - first)) for lo, hi in choice.samples]
            for i in study.plan.instances
            if i.per_sample
        }
        tasks = _both(tasks, {id: merged(r for r in ranges if r[0] < r[1]) for id, ranges in ours.items()})
    return tasks


def _both(one: Mapping[str, list[Range]], other: Mapping[str, list[Range]]) -> Tasks:
    """The tasks that are in both."""
    common = {id: within(one[id], other[id]) for id in one.keys() & other.keys()}
    return {id: ranges for id, ranges in common.items() if ranges}


def _rerun(study: Workspace, chosen: Tasks, stale: Tasks) -> Rerun:
    """What would run again of one member; `stale`: its tasks that used what is made again elsewhere."""
    outcomes = replay(study.ledger_dir, study.plan).outcomes
    both = {id: merged([*chosen.get(id, ()), *stale.get(id, ())]) for id in (*chosen, *stale)}
    again = tasks_to_rerun(study.plan, outcomes, both, HasFiles(study, outcomes)) if both else {}
    steps: dict[str, RerunStep] = {}
    missing = 0
    for instance in study.plan.instances:
        missing += total(outcomes[instance.id].ranges((NO_OUTCOME, Outcome.INTERRUPTED)))
        have = steps.get(instance.step, RerunStep(step=instance.step, chosen=0, others=0))
        num = total(again.get(instance.id, ()))
        asked = total(_both(again, chosen).get(instance.id, ()))
        steps[instance.step] = RerunStep(
            step=instance.step, chosen=have.chosen + asked, others=have.others + num - asked
        )
    return Rerun(
        workspace=study,
        again=again,
        steps=tuple(step for step in steps.values() if step.chosen or step.others),
        missing=missing,
    )


class HasFiles:
    """Says whether a task has left what it made; only data sets that clean up remove files."""

    def __init__(self, study: Workspace, outcomes: Mapping[str, RunMap]) -> None:
        self._study, self._outcomes = study, outcomes
        self._cleaned = {
            source
            for plan in plans_of(study)  # an earlier revision may have cleaned up
            for instance in plan.instances
            if instance.aggregate is not None and instance.aggregate.cleanup
            for source in instance.aggregate.sources
        }

    def may_lack(self, instance: StepInstance) -> bool:
        return instance.id in self._cleaned

    def __call__(self, instance: StepInstance, task: int) -> bool:
        outcome = self._outcomes[instance.id][task]
        directory = self._study.task_dir(instance, task)
        if instance.id in self._cleaned and outcome == Outcome.FAILED:  # perhaps on what a data set had of it
            return directory.is_dir()
        return instance.id not in self._cleaned or outcome != Outcome.OK or is_finished(str(directory))


def _require_samples(studies: Sequence[Workspace], samples: Sequence[Range]) -> None:
    """Raise UsageError if the study and its extensions lack one of these samples; sample ids have no gaps."""
    numbered = [study.plan.samples for study in studies if study.plan.samples is not None]
    if not numbered:
        raise UsageError(f"{studies[0].path} has no samples; choose its tasks by --step or --where")
    first, end = numbered[0].first, numbered[-1].first + numbered[-1].num
    for lo, hi in samples:
        if lo < first or hi > end:
            wrong = lo if lo < first else hi - 1
            raise UsageError(f"there is no sample {wrong}; {studies[0].path} has {first} to {end - 1}")


def _require_groups(studies: Sequence[Workspace], choice: Choice) -> None:
    """Raise UsageError for the id of an unknown group."""
    for group in choice.groups:
        if not any(failed_tasks(study, groups=[group]) for study in studies):
            raise UsageError(
                f"there is no group {group!r} of failures; merlin failures {studies[0].path} lists them"
            )
