"""Shows what an edited spec changes in a study, asks, and updates it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.api.cancelling import cancel_study
from merlin.api.extending import next_extension
from merlin.api.left_to_run import with_work
from merlin.api.revising import apply_update, held
from merlin.api.updating import MemberUpdate, Update, UpdateOptions, plan_update
from merlin.base.text import count, duration
from merlin.cli import execute
from merlin.cli.output import print_json, print_table, remark
from merlin.errors import UsageError, WorkspaceError, command_line
from merlin.ledger.replay import Replay, replay
from merlin.plan.tasks import Outcome
from merlin.status.live import holder_of
from merlin.status.snapshot import is_published
from merlin.views.rerunning import HasFiles
from merlin.workspace.directory import Workspace, members, open_workspace

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.spec.load import Spec
    from merlin.workspace.options import StudyOptions

ASK_SHARE = 0.05  # of the time that was spent: to repeat more of it, somebody is asked
MAX_REASONS = 3  # that are shown of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """What becomes of a step, over its instances and the study's extensions."""

    step: str
    what: str  # same, new, gone, changed
    why: tuple[str, ...]
    to_run: int
    again: int  # of these, tasks that had ended
    kept: int
    collected: int  # of these, tasks of which only the outputs are collected again
    has_other_samples: bool  # it runs per sample, and some have other values
    is_kept: bool  # what it has made is taken as it is, by --keep
    kept_s: float  # seconds of workers that need not be spent again
    again_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a study is updated, and run afterwards."""

    keep: tuple[str, ...]
    changed_code: bool
    yes: bool
    is_dry: bool
    num_workers: int | None
    as_json: bool


def run_update(spec: Spec, options: StudyOptions, path: Path, config: Config | None, how: Manner) -> int:
    """Update the study at `path`, and run what is to run of it, here or on workers; returns the exit code."""
    from merlin.cli.extending import run_studies, told
    from merlin.execution.conductor import RunOptions

    choice = UpdateOptions(keep=how.keep, rerun_code=how.changed_code)
    if how.is_dry:
        preview_update(spec, options, path, choice, as_json=how.as_json)
        return 0
    study, num_more = update_study(spec, options, path, choice, yes=how.yes, as_json=how.as_json)
    run_options = RunOptions(workers=how.num_workers)
    reports = run_studies(with_work(study, failed=False), config, run_options, as_json=how.as_json)
    if num_more and reports[-1]["exit_code"] != execute.EXIT_INTERRUPTED:
        made = next_extension(spec, options, study, only_new=False, note=remark)
        if made is not None:
            reports += run_studies([made], config, run_options, as_json=how.as_json)
    return told(reports, as_json=how.as_json)


def study_to_update(path: Path) -> Workspace:
    """The study at `path`. Raises UsageError if that is an extension."""
    study = open_workspace(path)
    if study.plan.extension:
        raise UsageError(f"{path} is an extension; give its study: --update {study.root}")
    return study


def preview_update(
    spec: Spec, options: StudyOptions, path: Path, how: UpdateOptions, *, as_json: bool
) -> None:
    """Print what `merlin run SPEC --update WORKSPACE` would do."""
    with tempfile.TemporaryDirectory(prefix="merlin-samples-") as folder:
        update = plan_update(spec, options, study_to_update(path), how, _has_files, Path(folder))
        _show(update, as_json=as_json)


def update_study(
    spec: Spec, options: StudyOptions, path: Path, how: UpdateOptions, *, yes: bool, as_json: bool
) -> tuple[Workspace, int]:
    """Show, ask, and let the study be what the spec says; returns it, and how many samples an extension has to add.

    Raises UsageError if somebody has to be asked and nobody can answer, WorkspaceError if another command runs it.
    """
    study = study_to_update(path)
    for member in members(study):
        if holder := holder_of(member):
            raise WorkspaceError(
                f"{member.path} is in use by a live run ({holder}); stop that one first, or wait"
            )
    with tempfile.TemporaryDirectory(prefix="merlin-samples-") as folder:
        update = plan_update(spec, options, study, how, _has_files, Path(folder))
        if not as_json:
            _show(update, as_json=False)
    if update.is_nothing:
        return study, update.num_more
    if not yes:
        _ask(update)
    _stop_workers(study)
    with held(study):
        study = open_workspace(path)  # an update that was cut off may have been finished
        update = plan_update(spec, options, study, how, _has_files)
        apply_update(update)
    remark(f"{study.path} is at revision {update.number} now")
    return open_workspace(path), update.num_more


def _has_files(workspace: Workspace, state: Replay) -> HasFiles:
    return HasFiles(workspace, state.outcomes)


def _stop_workers(study: Workspace) -> None:
    """End what workers run of the study; what they have finished counts, and what they have not runs again."""
    for member in members(study):
        if is_published(replay(member.ledger_dir, member.plan)):
            cancel_study(member, remark)


def _ask(update: Update) -> None:
    lines = list(step_lines(update))
    again_s, all_s = sum(each.again_s for each in lines), sum(each.again_s + each.kept_s for each in lines)
    num_again = sum(each.again for each in lines)
    is_gone = any(each.what == "gone" for each in lines)
    if not is_gone and (not num_again or again_s <= ASK_SHARE * all_s):
        return
    if not (sys.stdin and sys.stdin.isatty()):
        raise UsageError("the update asks before it repeats work, and nobody can answer here; add --yes")
    took = f", which took {duration(again_s)} of a worker" if again_s >= 1 else ""
    gone = ", ".join(each.step for each in lines if each.what == "gone")
    words = [f"put aside what {gone} has made"] if gone else []
    words += [f"run {count(num_again, 'task')} again{took}"] if num_again else []
    question = " and ".join(words)
    click.confirm(f"{question[0].upper()}{question[1:]}?", abort=True, err=True)


def step_lines(update: Update) -> Iterator[StepLine]:
    """The steps in the order of the plan, then those that are gone."""
    found: dict[str, list[tuple[str, Any, float]]] = {}
    for member in update.members:
        seconds = _seconds_per_task(member)
        for each in member.change.instances:
            what = "new" if each.is_new else "gone" if each.is_gone else "changed" if each.why else "same"
            found.setdefault(each.step, []).append((what, each, seconds.get(each.id, 0.0)))
    per_sample = {each.step for each in update.members[0].plan.instances if each.per_sample}
    for step, several in found.items():
        kinds = {what for what, _, _ in several}
        yield StepLine(
            step=step,
            what=kinds.pop() if len(kinds) == 1 else "changed",
            why=tuple(dict.fromkeys(why for _, each, _ in several for why in each.why)),
            to_run=sum(each.num_to_run for _, each, _ in several if not each.is_gone),
            again=sum(each.num_again for _, each, _ in several),
            kept=sum(each.num_kept for _, each, _ in several),
            collected=sum(hi - lo for _, each, _ in several for lo, hi in each.collected),
            has_other_samples=step in per_sample and update.has_other_values,
            is_kept=step in update.keep,
            kept_s=sum(each.num_kept * seconds for _, each, seconds in several),
            again_s=sum(each.num_again * seconds for _, each, seconds in several),
        )


def _seconds_per_task(member: MemberUpdate) -> dict[str, float]:
    found = {}
    for instance in member.workspace.plan.instances:
        headers = [entry.header for entry in member.state.entries(instance.id) if entry.header.elapsed_s > 0]
        num = sum(header.counts[Outcome.OK] + header.counts[Outcome.FAILED] for header in headers)
        found[instance.id] = sum(header.elapsed_s for header in headers) / num if num else 0.0
    return found


def _show(update: Update, *, as_json: bool) -> None:
    lines = list(step_lines(update))
    if as_json:
        print_json(
            {
                "workspace": update.study.path,
                "revision": update.study.plan.revision,
                "next_revision": update.number,
                "is_nothing": update.is_nothing,
                "samples": update.samples,
                "new_samples": update.num_more,
                "changed_code": update.code,
                "versions": update.versions,
                "steps": lines,
                "exit_code": 0,
            }
        )
        return
    for step, changes in update.code.items():
        print(f"{step}: {'; '.join(changes)}")
    if update.code and not update.reruns_code:
        print("  that alone runs nothing again; --changed-code does")
    for line in update.versions:
        print(f"made with {line}")
    if update.is_nothing and not update.num_more:
        print(f"{update.study.path} is what {update.spec.path} says; nothing runs again")
        if num := sum(member.num_to_run for member in update.members):
            print(
                f"{count(num, 'task')} that have no outcome yet: {command_line('restart', update.study.path)}"
            )
        return
    rows = [
        (each.step, _why(each), f"{each.to_run:,}", f"{each.kept:,}", _core_hours(each.kept_s))
        for each in lines
    ]
    print_table(("step", "why", "to run", "kept", "saved"), rows, right=("to run", "kept", "saved"))
    if update.samples:
        print(f"samples: {update.samples}")


def _why(line: StepLine) -> str:
    if line.what == "same" and line.again:
        return "other samples" if line.has_other_samples else "because of others"
    if line.what == "same" and line.collected:
        return f"outputs of {count(line.collected, 'task')} collected again"
    if line.what != "changed":
        return "kept by --keep" if line.is_kept else line.what
    more = len(line.why) - MAX_REASONS
    words = "; ".join(line.why[:MAX_REASONS]) + (f"; and {more} more" if more > 0 else "")
    return words or "changed"


def _core_hours(seconds: float) -> str:
    return f"{duration(seconds)}" if seconds >= 1 else ""
