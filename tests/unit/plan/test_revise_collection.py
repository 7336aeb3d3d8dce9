"""Which tasks run again because a data set is edited, and of which the results are taken from where they are."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from small_plans import every, gather, plan, runs, step

from merlin.plan.plan import Plan, StepKind
from merlin.plan.revise import InstanceChange, find_change
from merlin.plan.revise_collection import PRESENT, Before, Held
from merlin.plan.tasks import FROM_FILES, Outcome

OK, FAILED = int(Outcome.OK), int(Outcome.FAILED)


def study(*, valid: tuple[str, ...] = (), kind: StepKind = StepKind.FUNCTION, **more: Any) -> Plan:
    """A step of ten tasks, and a data set over it."""
    data = gather("data", ("draw",), 10, 5)
    assert data.aggregate is not None
    data = replace(data, aggregate=replace(data.aggregate, valid=valid))
    manifest = step("m", 1, every("data"), kind=StepKind.MANIFEST, aggregate=data.aggregate)
    return plan(step("draw", 10, kind=kind, **more), data, manifest)


ENDED = {"draw": runs(10, (0, 10, OK)), "data": runs(2, (0, 2, OK)), "m": runs(1, (0, 1, OK))}


class DataSets:
    """Each has some tasks."""

    def __init__(self, **tasks: list[tuple[int, int]]) -> None:
        self.tasks = {int(revision.removeprefix("of_")): ranges for revision, ranges in tasks.items()}

    def __call__(self, target, source, tasks, revision) -> Held:  # type: ignore[no-untyped-def]
        marks = runs(10, *((a, b, 0) for a, b in tasks))
        have = [r for a, b in self.tasks.get(revision, ()) for r in marks.ranges([0], a, b)]
        lost = sum(b - a for a, b in tasks) - sum(b - a for a, b in have)
        return Held(have, {"were filtered": lost} if lost else {})


def as_it_was(old: Plan, outcomes=ENDED, **more) -> Before:  # type: ignore[no-untyped-def]
    return Before(plan=old, outcomes=outcomes, has_files=lambda instance, task: True, **more)


def changed(  # type: ignore[no-untyped-def]
    old: Plan, new: Plan, outcomes=ENDED, changed_samples=(), **more
) -> InstanceChange:
    change = find_change(as_it_was(old, outcomes, **more), new, changed_samples=changed_samples)
    (draw,) = (each for each in change.instances if each.id == "draw")
    return draw


def test_tasks_that_the_data_set_of_before_has_do_not_run() -> None:
    draw = changed(study(), study(valid=("y > 1",)), holds=DataSets(of_0=[(0, 4), (6, 10)]))
    assert draw.taken == {PRESENT: ((0, 4), (6, 10))}
    assert (draw.again, draw.lacking, draw.num_kept) == (((4, 6),), {"were filtered": 2}, 8)


def test_without_data_sets_all_run_again() -> None:
    draw = changed(study(), study(valid=("y > 1",)))
    assert draw.again == ((0, 10),) and not draw.taken


def test_nothing_is_taken_for_a_step_that_is_another_one_itself_or_of_other_samples() -> None:
    holds = DataSets(of_0=[(0, 10)])
    draw = changed(study(), study(valid=("y > 1",), function="m:g"), holds=holds)
    assert draw.again == ((0, 10),) and not draw.taken
    draw = changed(study(), study(valid=("y > 1",)), holds=holds, changed_samples=[(2, 5)])
    assert draw.again == ((2, 5),) and draw.taken == {PRESENT: ((0, 2), (5, 10))}


def test_tasks_that_failed_only_for_the_data_set_run_again() -> None:
    outcomes = {**ENDED, "draw": runs(10, (0, 10, OK), (3, 4, FAILED))}
    draw = changed(
        study(),
        study(valid=("y > 1",)),
        outcomes,
        holds=DataSets(of_0=[(0, 10)]),
        badly_collected={"draw": [(3, 4)]},
    )
    assert draw.again == ((3, 4),) and draw.taken == {PRESENT: ((0, 3), (4, 10))}


def test_what_was_to_be_taken_already_is_taken_from_there() -> None:
    """Revision 3 has put data sets aside, and tasks 5 to 9 are not collected yet."""
    outcomes = {**ENDED, "draw": runs(10, (0, 5, OK))}
    pending = {"draw": runs(10, (0, 5, 0), (5, 10, 3))}
    holds = DataSets(of_0=[(0, 5)], of_3=[(0, 9)])
    draw = changed(study(), study(valid=("y > 1",)), outcomes, pending=pending, holds=holds)
    assert draw.taken == {PRESENT: ((0, 5),), 3: ((5, 9),)} and draw.again == ((9, 10),)
    draw = changed(study(), study(function="m:g"), outcomes, pending=pending, holds=holds)
    assert draw.again == ((0, 10),) and not draw.taken


def test_what_was_taken_and_is_in_no_shard_yet_is_taken_again_from_where_it_was() -> None:
    taken = {"draw": {3: [(2, 10)], 1: [(8, 9)]}}
    holds = DataSets(of_0=[(0, 5)], of_3=[(0, 8)], of_1=[(0, 10)])
    draw = changed(study(), study(valid=("y > 1",)), taken=taken, holds=holds)
    assert draw.taken == {PRESENT: ((0, 5),), 3: ((5, 8),), 1: ((8, 9),)}
    assert draw.again == ((9, 10),)


def test_outputs_in_files_that_were_to_be_collected_are_not_once_the_script_is_another_one() -> None:
    outcomes = {**ENDED, "draw": runs(10)}
    pending = {"draw": runs(10, (0, 10, FROM_FILES))}
    before = study(kind=StepKind.CMD)
    draw = changed(before, study(kind=StepKind.CMD, valid=("y > 1",)), outcomes, pending=pending)
    assert draw.collected == ((0, 10),) and not draw.again
    draw = changed(before, study(kind=StepKind.CMD, command="new"), outcomes, pending=pending)
    assert draw.again == ((0, 10),) and not draw.collected


def test_of_several_sources_that_have_fewer_tasks_the_data_set_is_made_anew() -> None:
    def both(num: int) -> Plan:
        parts = (step(id, num, kind=StepKind.FUNCTION) for id in ("a", "b"))
        return plan(*parts, gather("data", ("a", "b"), 2 * num, 5))

    outcomes = {"a": runs(10, (0, 10, OK)), "b": runs(10, (0, 10, OK)), "data": runs(4, (0, 4, OK))}
    change = find_change(as_it_was(both(10), outcomes, holds=DataSets(of_0=[(0, 10)])), both(8))
    a, b, data = change.instances
    assert a.taken == b.taken == {PRESENT: ((0, 8),)} and not (a.again or b.again)
    assert data.why == ("its rows have other numbers",) and data.again == ((0, 4),)


def test_splits_in_another_order_have_other_samples() -> None:
    old = study()
    instances = []
    for each in old.instances:
        data = each.aggregate
        instances.append(
            each if data is None else replace(each, aggregate=replace(data, splits=data.splits[::-1]))
        )
    new = replace(old, instances=tuple(instances))
    change = find_change(as_it_was(old), new)
    assert [each.again for each in change.instances] == [(), (), ((0, 1),)]
    assert change.instances[2].why[0].startswith("order of splits: ")
