"""A page of a study's tasks, whatever their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import Struct

from merlin.errors import UsageError
from merlin.status.tasks import TaskRow
from merlin.views.outcome_runs import OUTCOMES
from merlin.views.study_ledgers import Stretch
from merlin.views.study_page import StudyView

MAX_ROWS = 200

Found = tuple[Stretch, int, int]  # tasks [lo, hi) of an instance


class TaskPage(Struct, frozen=True, kw_only=True):
    """Rows in the order of the plan. `instance` of a row of an extension is "extensions/001/<id>"."""

    rows: tuple[TaskRow, ...]
    next_after: int | None  # `after` of the next page; None: this is the last
    total: int  # tasks with this step, outcome and sample, over all pages


def tasks(
    study: StudyView,
    step: str = "",
    outcome: str = "",
    *,
    after: int = 0,
    limit: int = 50,
    sample: int | None = None,
) -> TaskPage:
    """A page of the tasks of a step ("": of all) with an outcome (ok, failed, skipped or missing; "": any).

    `after`: a position in the list of all tasks of that step, whatever their outcome; the page begins with the first
    task there or behind it, and 0 is the beginning. With `sample` only the tasks of that sample are in the list.

    Raises:
        UsageError: words or numbers are wrong.
        WorkspaceError, LedgerError: there is no such step, or the study cannot be read.
    """
    if outcome and outcome not in OUTCOMES:
        raise UsageError(f"unknown outcome {outcome!r}; there are: {', '.join(OUTCOMES)}")
    if after < 0 or not 1 <= limit <= MAX_ROWS:
        raise UsageError(f"a page begins at 0 or later and has 1 to {MAX_ROWS} rows, not {after} and {limit}")
    with study.ledgers() as ledgers:
        stretches = ledgers.stretches(step)
        found, next_after = _take(_matching(stretches, outcome, after, sample), limit)
        return TaskPage(
            rows=tuple(row for s, ranges in found for row in s.member.rows(s.instance, ranges)),
            next_after=next_after,
            total=_total(stretches, outcome, sample),
        )


def _matching(stretches: Sequence[Stretch], outcome: str, after: int, sample: int | None) -> Iterator[Found]:
    for stretch in stretches:
        first = max(0, after - stretch.first)
        if first >= stretch.instance.num_tasks:
            continue
        runs = stretch.member.runs_of(stretch.instance.id)
        if sample is None:
            yield from ((stretch, lo, hi) for lo, hi in runs.ranges(outcome, first))
        else:
            task = _task_of(stretch, sample)
            if task is not None and task >= first and outcome in ("", runs.outcome(task)):
                yield stretch, task, task + 1


def _task_of(stretch: Stretch, sample: int) -> int | None:
    """The task of a sample; None if there is none."""
    task = sample - stretch.member.workspace.first_sample
    return task if stretch.instance.per_sample and 0 <= task < stretch.instance.num_tasks else None


def _take(
    matching: Iterator[Found], limit: int
) -> tuple[list[tuple[Stretch, list[tuple[int, int]]]], int | None]:
    """The first `limit` tasks by instance, and the position of the next one."""
    taken: list[Found] = []
    next_after = None
    for stretch, lo, hi in matching:
        if not limit:
            next_after = stretch.first + lo
            break
        end = min(hi, lo + limit)
        taken.append((stretch, lo, end))
        limit -= end - lo
        if end < hi:
            next_after = stretch.first + end
            break
    by_instance = groupby(taken, key=lambda found: found[0])
    return [(stretch, [(lo, hi) for _, lo, hi in group]) for stretch, group in by_instance], next_after


def _total(stretches: Sequence[Stretch], outcome: str, sample: int | None) -> int:
    if sample is not None:
        return sum(hi - lo for _, lo, hi in _matching(stretches, outcome, 0, sample))
    if not outcome:
        return stretches[-1].end if stretches else 0
    return sum(stretch.member.counts(stretch.instance)[outcome] for stretch in stretches)
