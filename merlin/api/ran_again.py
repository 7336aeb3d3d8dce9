"""What ran again in a revision that is undone, so that the outcomes of before do not fit what its tasks have left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from merlin.base.ranges import Range, merged, total
from merlin.execution.conductor import UPDATER, append_records
from merlin.ledger.collect_again import badly_collected
from merlin.ledger.format import Kind
from merlin.ledger.records import RESET
from merlin.ledger.replay import Replay, replay
from merlin.ledger.resets import resets
from merlin.ledger.session import next_session
from merlin.plan.plan import StepInstance, StepKind
from merlin.plan.plan_io import read_plan
from merlin.plan.rerun import tasks_to_rerun
from merlin.plan.runs import RunMap
from merlin.plan.tasks import Outcome
from merlin.views.rerunning import HasFiles
from merlin.workspace.directory import PLAN_NAME, Workspace, members, revision_dir
from merlin.workspace.revisions import RevisionNote


def reset_what_ran_again(study: Workspace, note: RevisionNote) -> int:
    """Reset tasks of the revision from which the present one was made, with all that depends on them; how many.

    These are the tasks that a rerun or a restart of failures has changed since: they ended otherwise, or not at all,
    and what they had left was not put aside by the update, so that it does not come back.

    Raises LedgerError or WorkspaceError. The present revision stays as it is.
    """
    back = {*note.absent, *(move.source for move in note.moves if not move.is_link)}
    num = 0
    for member in members(study):
        if member.member not in note.members:
            continue
        base = Workspace(member.path, read_plan(revision_dir(member.info, note.base) / PLAN_NAME))
        if tasks := _not_as_before(member, base, back):
            # a session that is earlier than those of the present revision, where these records must not count
            session = next_session(base.ledger_dir, 0.0)
            append_records(base, session, *resets(tasks, f"ran again in revision {note.number}"))
            num += sum(total(ranges) for ranges in tasks.values())
    return num


def _not_as_before(member: Workspace, base: Workspace, back: set[str]) -> dict[str, list[Range]]:
    """The tasks of `base` that have to run again; `back`: the paths that become as they were."""
    now, there = replay(member.ledger_dir, member.plan), {each.id for each in member.plan.instances}
    stays = [each for each in base.plan.instances if each.id in there and not _comes_back(base, each, back)]
    ran = [(each, ranges) for each in stays if (ranges := _user_resets(now, each.id))]
    if not ran:
        return {}
    before = replay(base.ledger_dir, base.plan)
    bad_now, bad_before = badly_collected(now), badly_collected(before)
    chosen: dict[str, list[Range]] = {}
    for instance, ranges in ran:
        is_, was = now.outcomes_of(instance.id), before.outcomes_of(instance.id)
        if back.issuperset(instance.feeds):  # then only the scripts count, and not what was collected
            is_ = _with_ok(is_, bad_now.get(instance.id, ()))
            was = _with_ok(was, bad_before.get(instance.id, ()))
        chosen[instance.id] = list(_not_back(base, instance, merged(_differing(is_, was, ranges)), back))
    return tasks_to_rerun(base.plan, before.outcomes, chosen, HasFiles(base, before.outcomes))


def _user_resets(state: Replay, instance: str) -> list[Range]:
    """The tasks that have been reset in the last revision, apart from the update itself."""
    own = (e for e in state.entries(instance) if e.segment.path.parent == state.directory)
    headers = (e.header for e in own if e.writer.worker != UPDATER)
    return merged((h.lo, h.hi) for h in headers if h.kind == Kind.RANGE and h.outcome == RESET)


def _comes_back(base: Workspace, instance: StepInstance, back: set[str]) -> bool:
    """Whether all that the tasks of an instance had left comes back."""
    if instance.aggregate is not None:
        return (instance.finishes if instance.kind is StepKind.MANIFEST else instance.id) in back
    if instance.kind is StepKind.FUNCTION and instance.feeds:
        return back.issuperset(instance.feeds)
    return base.below_root(instance.id) in back


def _not_back(base: Workspace, instance: StepInstance, tasks: list[Range], back: set[str]) -> Iterator[Range]:
    """The tasks whose own directories do not come back."""
    place = base.below_root(instance.id)
    if not any(path.startswith(f"{place}/") for path in back):
        yield from tasks
        return
    for lo, hi in tasks:
        for task in range(lo, hi):
            if f"{place}/{base.sample_path(instance, task)}" not in back:
                yield task, task + 1


def _with_ok(outcomes: RunMap, tasks: Iterable[Range]) -> RunMap:
    """The outcomes, as if these tasks had ended ok."""
    found = RunMap.from_runs(outcomes.size, outcomes.runs())
    for lo, hi in tasks:
        found.set(lo, hi, Outcome.OK)
    return found


def _differing(some: RunMap, others: RunMap, ranges: Iterable[Range]) -> Iterator[Range]:
    """The tasks of the ranges that are in both maps and have different outcomes there."""
    for lo, hi in ranges:
        for a, b, value in some.runs(lo, min(hi, others.size)):
            yield from ((x, y) for x, y, other in others.runs(a, b) if other != value)
