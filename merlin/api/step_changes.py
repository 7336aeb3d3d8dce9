"""What an update changes, step by step, what it costs, and whether somebody has to agree to it first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from msgspec import Struct

from merlin.api.updating import Update
from merlin.plan.change_words import some_are
from merlin.plan.revise import InstanceChange
from merlin.plan.revise_collection import added
from merlin.views.cost import core_seconds_per_task

ASK_SHARE = 0.05  # the share of the time spent so far; to repeat more than this, the user is asked


class StepChange(Struct, frozen=True, kw_only=True):
    """What becomes of a step, over its instances and the study's extensions."""

    step: str
    what: str  # same, new, gone, changed
    why: tuple[str, ...]
    to_run: int
    again: int  # of these, tasks that had ended
    kept: int
    collected: int  # of these, tasks of which only the outputs are collected again
    has_other_samples: bool  # it runs per sample, and some have other values
    taken: int  # tasks whose values are taken from earlier data sets
    has_lost: bool  # some of its results exist nowhere any more, and a data set that is made anew needs them
    lacking: dict[str, int]  # reason why earlier data sets lack results -> number of tasks
    is_kept: bool  # its results are taken as they are, because of --keep
    kept_s: float  # seconds of workers that need not be spent again
    again_s: float


class UpdateFacts(Struct, frozen=True, kw_only=True):
    """What an update changes, as `merlin plan --update --json` prints it."""

    workspace: str
    revision: int
    next_revision: int
    is_nothing: bool
    samples: str  # what has changed in the samples, in words
    new_samples: int
    changed_code: Mapping[str, list[str]]  # by step: which files have changed that it uses
    versions: tuple[str, ...]
    steps: tuple[StepChange, ...]

    @staticmethod
    def of(update: Update) -> UpdateFacts:
        return UpdateFacts(
            workspace=str(update.study.path),
            revision=update.study.plan.revision,
            next_revision=update.number,
            is_nothing=update.is_nothing,
            samples=update.samples,
            new_samples=update.num_more,
            changed_code=update.code,
            versions=update.versions,
            steps=tuple(step_changes(update)),
        )


class UpdateCost(Struct, frozen=True, kw_only=True):
    """The results of a study that an update gives up."""

    gone: tuple[str, ...]  # steps
    num_fewer: int  # samples
    num_again: int  # tasks that had ended, and run again
    again_s: float  # seconds of workers that these took
    spent_s: float  # seconds of workers that all tasks took

    @staticmethod
    def of(update: Update) -> UpdateCost:
        steps = list(step_changes(update))
        again_s = sum(each.again_s for each in steps)
        return UpdateCost(
            gone=tuple(each.step for each in steps if each.what == "gone"),
            num_fewer=update.num_fewer,
            num_again=sum(each.again for each in steps),
            again_s=again_s,
            spent_s=sum(each.again_s + each.kept_s for each in steps),
        )

    @property
    def removes(self) -> bool:
        """Steps or samples leave the study."""
        return bool(self.gone or self.num_fewer)

    @property
    def needs_consent(self) -> bool:
        """The user is asked first: something leaves the study, or much of its work is repeated."""
        return self.removes or (self.num_again > 0 and self.again_s > ASK_SHARE * self.spent_s)


class _Part(NamedTuple):
    """What becomes of a step instance of the study or of an extension."""

    change: InstanceChange
    task_s: float  # core-seconds that one of its tasks has taken


def step_changes(update: Update) -> Iterator[StepChange]:
    """The steps in the order of the plan, then those that are gone."""
    found: dict[str, list[_Part]] = {}
    for member in update.members:
        seconds = core_seconds_per_task(member.state, member.workspace.plan)
        for each in member.change.instances:
            found.setdefault(each.step, []).append(_Part(each, seconds.get(each.id, 0.0)))
    per_sample = {each.step for each in update.members[0].plan.instances if each.per_sample}
    for step, parts in found.items():
        changes = [part.change for part in parts]
        kinds = {each.what for each in changes}
        yield StepChange(
            step=step,
            what=kinds.pop() if len(kinds) == 1 else "changed",
            why=tuple(dict.fromkeys(why for each in changes for why in each.why)) + _partly(changes),
            to_run=sum(each.num_to_run for each in changes if not each.is_gone),
            again=sum(each.num_again for each in changes),
            kept=sum(each.num_kept for each in changes),
            collected=sum(each.num_collected for each in changes),
            has_other_samples=step in per_sample and update.has_other_values,
            taken=sum(each.num_taken for each in changes),
            has_lost=any(each.has_lost for each in changes),
            lacking=reduce(added, (each.lacking for each in changes), {}),
            is_kept=step in update.keep,
            kept_s=sum(part.change.num_kept * part.task_s for part in parts),
            again_s=sum(part.change.num_again * part.task_s for part in parts),
        )


def _partly(changes: Sequence[InstanceChange]) -> tuple[str, ...]:
    """Which instances of a step are new or gone, if that is not so for all of them."""
    if len({each.what for each in changes}) == 1:
        return ()
    found = (some_are((each.id for each in changes if each.what == what), what) for what in ("new", "gone"))
    return tuple(filter(None, found))
