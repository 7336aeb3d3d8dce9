"""Shows what an edited spec changes in a study, asks, and updates it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from merlin.api.cancelling import end_on_workers
from merlin.api.extending import next_extension
from merlin.api.left_to_run import has_work, refuse_running, with_work
from merlin.api.revising import apply_update, held
from merlin.api.step_changes import StepChange, UpdateCost, UpdateFacts
from merlin.api.updating import Update, UpdateOptions, plan_update
from merlin.base.text import core_time, count
from merlin.cli.output import can_ask, plain, print_json, print_table, remark, warn
from merlin.cli.reading_samples import reading_shown
from merlin.cli.running import Work, run_works, told
from merlin.errors import UsageError, command_line
from merlin.execution.conductor import RunOptions
from merlin.execution.try_import import import_warnings
from merlin.plan.change_words import first_reasons
from merlin.plan.study_variables import runtime_variables
from merlin.views.run_report import EXIT_INTERRUPTED
from merlin.workspace.acquire import acquire_dependencies
from merlin.workspace.directory import Workspace, members, open_workspace
from merlin.workspace.holding import open_root

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.spec.load import Spec
    from merlin.workspace.options import StudyOptions


class Manner(Struct, frozen=True, kw_only=True):
    """How a study is updated, and run afterwards."""

    keep: tuple[str, ...]
    changed_code: bool
    yes: bool
    is_dry: bool
    num_workers: int | None
    as_json: bool


def run_update(spec: Spec, options: StudyOptions, path: Path, config: Config | None, how: Manner) -> int:
    """Update the study at `path`, and run what is to run of it, here or on workers; returns the exit code."""
    choice = UpdateOptions(keep=how.keep, rerun_code=how.changed_code)
    if how.is_dry:
        again = "the same command without --dry"
        preview_update(spec, options, path, choice, as_json=how.as_json, next_command=again)
        return 0
    study, num_more = update_study(spec, options, path, choice, yes=how.yes, as_json=how.as_json)
    run_options = RunOptions(workers=how.num_workers)
    works = [Work(study=each, options=run_options) for each in with_work(study)]
    is_first = config is not None and any(has_work(work.study) for work in works)
    reports = run_works(works, config, as_json=how.as_json)
    if num_more and is_first:  # new samples follow what workers have ended
        remark(
            f"{count(num_more, 'more sample')} to add: give the same command again when workers have ended this"
        )
    elif num_more and reports[-1].report.exit_code != EXIT_INTERRUPTED:
        made = next_extension(spec, options, study, only_new=False, note=remark)
        if made is not None:
            reports += run_works([Work(study=made, options=run_options)], config, as_json=how.as_json)
    return told(reports, as_json=how.as_json)


def preview_update(
    spec: Spec, options: StudyOptions, path: Path, how: UpdateOptions, *, as_json: bool, next_command: str
) -> None:
    """Print what `merlin run SPEC --update WORKSPACE` would do; `next_command` says how that is written."""
    with tempfile.TemporaryDirectory(prefix="merlin-samples-") as folder:
        study = open_root(path, remark, "--update")
        with reading_shown():
            update = plan_update(spec, options, study, how, Path(folder))
        warn(import_warnings(spec, elsewhere=True))
        if as_json:
            print_json({**plain(UpdateFacts.of(update)), "exit_code": 0})
        else:
            _show(update, next_command)


def update_study(
    spec: Spec,
    options: StudyOptions,
    path: Path,
    how: UpdateOptions,
    *,
    yes: bool,
    as_json: bool,
    check: Callable[[Update], None] = lambda update: None,
) -> tuple[Workspace, int]:
    """Show, ask, and let the study be what the spec says; returns it, and how many samples an extension has to add.

    `check` may refuse an update before anything changes.

    Raises UsageError if somebody has to be asked and nobody can answer, WorkspaceError if another command runs it,
    SpecError if a repository cannot be cloned, or is there in another version.
    """
    study = open_root(path, remark, "--update")
    refuse_running(members(study))
    with tempfile.TemporaryDirectory(prefix="merlin-samples-") as folder:
        with reading_shown():
            update = plan_update(spec, options, study, how, Path(folder))
        check(update)
        if not as_json:
            _show(update)
    if not (update.is_nothing or yes) and (cost := UpdateCost.of(update)).needs_consent:
        _ask(cost)
    acquire_dependencies(spec, runtime_variables(spec, study.path), remark)
    if update.is_nothing:
        return study, update.num_more
    end_on_workers(members(study), remark)
    with held(study):
        study = open_workspace(path)  # an update that was cut off may have been finished
        with reading_shown():
            update = plan_update(spec, options, study, how)
        check(update)
        apply_update(update)
    back = command_line("history", study.path, "--undo")
    remark(f"{study.path} is at revision {update.number} now; to go back: {back}")
    return open_workspace(path), update.num_more


def _ask(cost: UpdateCost) -> None:
    if not can_ask():
        removes = [what for what, is_so in (("a step", cost.gone), ("samples", cost.num_fewer)) if is_so]
        reason = f"removes {' and '.join(removes)}" if removes else "repeats work"
        raise UsageError(
            f"the update asks before it {reason}, and nobody can answer here; add --yes, or mend the command"
        )
    took = f", which took {_core_time(cost.again_s)}" if cost.again_s >= 1 else ""
    words = [f"leave out {count(cost.num_fewer, 'sample')}"] if cost.num_fewer else []
    words += [f"put aside what {', '.join(cost.gone)} has made"] if cost.gone else []
    words += [f"run {count(cost.num_again, 'task')} again{took}"] if cost.num_again else []
    question = " and ".join(words)
    click.confirm(f"{question[0].upper()}{question[1:]}?", abort=True, err=True)


def _show(update: Update, next_command: str = "") -> None:
    """Print what an update changes; `next_command` does it, if this one does not."""
    other = update.spec.document.description.name
    if update.study.plan.name != other:
        print(f"the study is called {update.study.plan.name}, and this spec {other}")
    _show_code(update)
    if update.is_nothing and not update.num_more:
        print(f"{update.study.path} is what {update.spec.path} says; nothing runs again")
        if num := sum(member.num_to_run for member in update.members):
            print(
                f"not ended yet: {count(num, 'task')}{next_command and f'; to run what is left: {next_command}'}"
            )
        return
    rows = [
        (each.step, _why(each), f"{each.to_run:,}", f"{each.kept:,}", _core_time(each.kept_s))
        for each in UpdateFacts.of(update).steps
    ]
    columns = ("step", "why", "to run", "kept", "saved")
    print_table(columns, rows, right=("to run", "kept", "saved"), folded="why")
    if update.samples:
        print(f"samples: {update.samples}")
    if next_command:
        print(f"to update it: {next_command}")


def _show_code(update: Update) -> None:
    for step, changes in update.code.items():
        print(f"{step}: {'; '.join(changes)}")
    if update.code and not update.reruns_code:
        print("  that alone runs nothing again; to run it, add --changed-code to the command")
    for line in update.versions:
        print(f"made with {line}")


def _why(line: StepChange) -> str:
    if line.what == "same" and line.again:
        if line.has_lost:
            taken = (
                [f"values of {count(line.taken, 'task')} from the data set of before"] if line.taken else []
            )
            lost = (f"{num:,} {why}" for why, num in line.lacking.items())
            return "; ".join([*taken, *lost]) or "its results are in its data set alone"
        return "other samples" if line.has_other_samples else "because of others"
    if line.what == "same" and line.collected:
        return f"outputs of {count(line.collected, 'task')} collected again"
    if line.what == "same" and line.taken:
        return f"values of {count(line.taken, 'task')} from the data set of before"
    if line.what == "same" and line.to_run:
        return "not ended yet"
    if line.what != "changed":
        return "kept by --keep" if line.is_kept else line.what
    return first_reasons(line.why) or "changed"


def _core_time(seconds: float) -> str:
    """What is shown of so many core-seconds; "" for less than one."""
    return core_time(seconds / 3600) if seconds >= 1 else ""
