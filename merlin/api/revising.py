"""Gives a study another revision: all of the revision is written first, and then it takes effect at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from merlin.api.cancelling import end_on_workers
from merlin.api.left_to_run import refuse_running
from merlin.api.ran_again import reset_what_ran_again
from merlin.api.revision_moves import moves_of
from merlin.api.sample_moves import sample_moves
from merlin.api.updating import MemberUpdate, Update
from merlin.base.files import file_error, write_text
from merlin.base.ranges import merged, without
from merlin.base.text import count
from merlin.errors import LedgerError, WorkspaceError, command_line
from merlin.execution.conductor import UPDATER
from merlin.ledger.records import RESET, ChunkRecord, EventRecord, RangeRecord
from merlin.ledger.replay import Replay
from merlin.ledger.resets import COLLECT_AGAIN, EDITED, resets, taken_from
from merlin.ledger.segments import write_lineage
from merlin.ledger.session import next_session
from merlin.ledger.writer import LedgerWriter
from merlin.plan.plan import Plan
from merlin.plan.plan_io import plan_to_json
from merlin.plan.revise_collection import PRESENT
from merlin.plan.study_variables import runtime_variables
from merlin.plan.tasks import NO_OUTCOME, Outcome
from merlin.workspace.directory import (
    PLAN_NAME,
    Workspace,
    extensions,
    ledger_of,
    lock_file,
    members,
    revision_dir,
)
from merlin.workspace.extend import LOCK_NAME as EXTEND_LOCK
from merlin.workspace.holding import lock
from merlin.workspace.new_samples import write_rows
from merlin.workspace.prepare import with_samples_digest
from merlin.workspace.provenance import find_provenance, write_provenance
from merlin.workspace.revisions import (
    Move,
    RevisionNote,
    StepNote,
    begin_switch,
    begin_undo,
    clear_prepared,
    finish_switch,
    keep_present,
    note_to_undo,
    write_note,
)
from merlin.workspace.samples import open_samples


@contextmanager
def held(study: Workspace) -> Iterator[None]:
    """Hold a study and its extensions, to update it; remove what an interrupted update had prepared.

    Raises WorkspaceError if somebody runs or extends it.
    """
    with ExitStack() as stack:
        stack.enter_context(lock(study))  # finishes an update, which may put extensions aside
        extended = f"{study.path} is being extended by another command"
        stack.enter_context(lock_file(study.info / EXTEND_LOCK, extended))
        for member in extensions(study):
            stack.enter_context(lock(member))
        clear_prepared(study)
        yield


def undo_update(study: Workspace, note: Callable[[str], None]) -> RevisionNote:
    """Go back to the revision before. What workers run of the study is ended, which a `note` may report.

    Raises WorkspaceError if a command runs it, or if there is no such revision; else as `end_on_workers`.
    """
    if study.plan.revision:
        refuse_running(members(study))
        end_on_workers(members(study), note)
    with held(study):
        undone = note_to_undo(study)
        with _as_it_was_if_it_fails(study):
            num_again = reset_what_ran_again(study, undone)
            begin_undo(study, undone)
        finish_switch(study.path)
    if num_again:
        note(
            f"{count(num_again, 'task')} of revision {undone.base} count as missing now: in revision {undone.number}, "
            f"they or their sources ran again and ended otherwise; to run them: {command_line('restart', study.path)}"
        )
    return undone


@contextmanager
def _as_it_was_if_it_fails(study: Workspace) -> Iterator[None]:
    """If something cannot be written, raise WorkspaceError that says so, and remove what was begun."""
    try:
        yield
    except (OSError, LedgerError) as error:
        clear_prepared(study)
        cause = error if isinstance(error, OSError) else error.__cause__
        why = file_error(cause) if isinstance(cause, OSError) else str(error)
        raise WorkspaceError(
            f"{study.path} is as it was, and cannot be changed: {why}, then give the command again"
        ) from error


def apply_update(update: Update) -> RevisionNote:
    """Make the revision, and let the study have it. The caller holds the study and all of its extensions.

    A kill at any moment leaves the study as it was, or as the update wants it.

    Raises:
        WorkspaceError: something cannot be written; the study is as it was, or `finish_switch` can complete it.
    """
    study = update.study
    changes = [(each.workspace, each.plan, each.change) for each in update.members]
    moves, absent = [], []
    of_tasks = moves_of(changes, update.number, gone=update.gone, grows=update.grows)
    for move in (*of_tasks, *sample_moves(update)):
        if move.is_link or os.path.lexists(study.path / move.source):
            moves.append(move)
        else:
            absent.append(move.source)
    note = _note(update, moves, absent)
    with _as_it_was_if_it_fails(study):
        plans = []
        for member in update.members:
            keep_present(member.workspace, study.plan.revision)
            plans.append(_prepare(update, member))
        write_note(study, note)
        begin_switch(study, plans[0], moves, note.members)
    finish_switch(study.path)
    return note


def _prepare(update: Update, member: MemberUpdate) -> Plan:
    """Write everything of the revision that belongs to one workspace; returns its plan there."""
    workspace, plan = member.workspace, member.plan
    folder = revision_dir(workspace.info, update.number)
    folder.mkdir(parents=True, exist_ok=True)
    variables = runtime_variables(update.spec, workspace.path, workspace.root)
    write_provenance(update.spec, folder, variables, update.parameters)
    if member.rows is not None and plan.samples is not None:
        file = workspace.path / plan.samples.file
        write_rows(file, member.rows, 0)
        plan = with_samples_digest(plan, open_samples(file, plan.samples.labels))
    ledger = ledger_of(workspace.info, update.number)
    ledger.mkdir(exist_ok=True)
    write_lineage(ledger, workspace.ledger_dir)
    session = next_session(workspace.ledger_dir, time.time())
    with LedgerWriter(ledger, UPDATER, session=session, study_id=plan.study_id) as writer:
        about = {"revision": update.number, "base": workspace.plan.revision}
        writer.append(EventRecord(kind="updated", data=about), *_records(member, update.number))
    write_text(folder / PLAN_NAME, plan_to_json(plan))
    return plan


def _records(member: MemberUpdate, number: int) -> Iterator[RangeRecord | ChunkRecord]:
    """Records that reset outcomes, and records that keep outcomes whose own record counts no longer."""
    sizes = {instance.id: instance.num_tasks for instance in member.workspace.plan.instances}
    for instance in member.plan.instances:
        end = instance.num_tasks
        if sizes.get(instance.id, 0) <= end:
            continue
        # the new revision cannot use records that reach beyond its last task, not even those that reset tasks
        cut = [e.header.lo for e in member.state.entries(instance.id) if e.header.lo < end < e.header.hi]
        if cut:
            yield from _kept(member.state, instance.id, min(cut), end)
    # these have the same attempt as the records above, and count more because they come later
    yield from resets(member.change.resets, EDITED, attempt=1)
    yield from resets(member.change.collected, COLLECT_AGAIN, attempt=1)
    for revision, tasks in member.change.taken.items():
        yield from resets(tasks, taken_from(number if revision == PRESENT else revision), attempt=1)


def _kept(state: Replay, instance: str, first: int, end: int) -> Iterator[RangeRecord | ChunkRecord]:
    """Records that say again how the tasks [first, end) have ended, and why they failed."""
    found = [each.failure for each in state.failures([instance]) if first <= each.failure.task < end]
    failed = merged((each.task, each.task + 1) for each in found)
    for lo, hi, outcome in state.outcomes_of(instance).runs(first, end):
        is_open = outcome in (NO_OUTCOME, Outcome.INTERRUPTED)
        stands = RESET if is_open else outcome
        for a, b in without([(lo, hi)], failed):
            yield RangeRecord(instance=instance, lo=a, hi=b, outcome=stands, cause="as before")
    if failed:
        outcomes = np.full(end - first, NO_OUTCOME, np.uint8)
        outcomes[[each.task - first for each in found]] = Outcome.FAILED
        yield ChunkRecord(
            instance=instance,
            lo=first,
            hi=end,
            started=time.time(),
            outcomes=outcomes,
            seconds=np.zeros(end - first, np.float32),
            elapsed_s=0.0,
            # the tails of most failures are not in the ledger, but what groups them
            failures=tuple(replace(each, tail=each.tail or each.signature) for each in found),
        )


def _note(update: Update, moves: list[Move], absent: list[str]) -> RevisionNote:
    began = find_provenance(Path(update.spec.path).parent)
    return RevisionNote(
        number=update.number,
        base=update.study.plan.revision,
        created=update.members[0].plan.created,
        user=began.user,
        host=began.host,
        command=began.command,
        spec=str(update.spec.path),
        spec_digest=update.spec.digest,
        samples=update.samples,
        steps=tuple(_steps(update)),
        moves=tuple(moves),
        absent=tuple(absent),
        members=tuple(each.workspace.member for each in update.members),
    )


def _steps(update: Update) -> Iterator[StepNote]:
    for member in update.members:
        for each in member.change.instances:
            yield StepNote(
                id=member.workspace.below_root(each.id),
                step=each.step,
                why=each.why,
                what="kept" if each.what == "same" and each.step in update.keep else each.what,
                again=each.num_again,
                kept=each.num_kept,
                collected=each.num_collected + each.num_taken,
            )
