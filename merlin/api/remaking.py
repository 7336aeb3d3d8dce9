"""Makes data sets of a study again in their places: an update that changes nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from merlin.api.updating import MemberUpdate, Update
from merlin.base.text import count
from merlin.errors import UsageError, command_line
from merlin.ledger.replay import replay
from merlin.plan.plan import Plan, StepKind
from merlin.plan.revise import InstanceChange
from merlin.plan.tasks import NO_OUTCOME, Outcome
from merlin.workspace.directory import Workspace

MAX_SHOWN = 3  # of what is in the way


def refuse_other_changes(update: Update) -> None:
    """Raise UsageError if an update would run a script or function for another reason than a changed data set."""
    found = [f"samples: {update.samples}"] if update.samples else []
    found += dict.fromkeys(words for member in update.members for words in _other_definitions(member))
    found = found or list(dict.fromkeys(words for member in update.members for words in _other_tasks(member)))
    if found:
        more = f"; and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
        update_it = command_line("run", update.spec.path, "--update", update.study.path)
        raise UsageError(
            f"{update.spec.path} changes more than data sets: {'; '.join(found[:MAX_SHOWN])}{more}; "
            f"for an update that runs that: {update_it}"
        )


def _other_definitions(member: MemberUpdate) -> Iterator[str]:
    """What an update changes in steps that make no data set, in words."""
    for each in _of_other_steps(member):
        if each.is_new or each.is_gone:
            yield f"{each.step} is {each.what}"
        elif each.why:
            yield f"{each.step}: {each.why[0]}"


def _other_tasks(member: MemberUpdate) -> Iterator[str]:
    """What would run although it depends on no data set, in words."""
    follows, collected = _on_data_sets(member.plan), set(steps_of_data_sets(member.plan))
    for each in _of_other_steps(member):
        if each.num_again and each.id not in follows:
            why = "; ".join(f"{num:,} {words}" for words, num in each.lacking.items())
            because = f" ({why})" if why else ""
            yield f"{count(each.num_again, 'task')} of {each.id} would run again{because}"
        elif each.num_open and each.id in collected:
            yield f"{count(each.num_open, 'task')} of {each.id} not ended yet"


def _of_other_steps(member: MemberUpdate) -> Iterator[InstanceChange]:
    plans = (member.workspace.plan, member.plan)
    makers = {each.id for plan in plans for each in plan.instances if each.aggregate is not None}
    return (each for each in member.change.instances if each.id not in makers)


def left_to_collect(studies: Iterable[Workspace]) -> Iterator[tuple[Workspace, tuple[str, ...]]]:
    """The studies whose data sets are not made yet, each with the ids of the steps that make them."""
    for study in studies:
        ids, outcomes = steps_of_data_sets(study.plan), replay(study.ledger_dir, study.plan).outcomes
        if any(outcomes[id].ranges((NO_OUTCOME, Outcome.INTERRUPTED)) for id in ids):
            yield study, ids


def steps_of_data_sets(plan: Plan) -> tuple[str, ...]:
    """The ids of the steps that make the data sets of a plan, and of the steps whose outputs these collect. Left out
    are data sets that wait for a step which runs on a data set itself."""
    later = _on_data_sets(plan)
    makers = [each for each in plan.instances if each.aggregate is not None and each.id not in later]
    found = [id for each in makers if each.aggregate is not None for id in (each.id, *each.aggregate.sources)]
    return tuple(dict.fromkeys(found))


def _on_data_sets(plan: Plan) -> set[str]:
    """The step instances that run on a data set, and whatever depends on these."""
    found: set[str] = set()
    data_sets = {each.id for each in plan.instances if each.aggregate is not None}
    for instance in plan.instances:  # after those that it depends on
        sources = {edge.source for edge in instance.edges}
        if instance.kind is StepKind.MANIFEST:  # it only waits for its other steps
            sources = {instance.finishes}
        if sources & found or (instance.aggregate is None and sources & data_sets):
            found.add(instance.id)
    return found
