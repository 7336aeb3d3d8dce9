"""The revisions of a study on the disk: what belongs to each, and how a study goes from one to another.

Everything of a new revision is written before the study has it. To replace the plan in merlin_info is the one step by
which the study gets that revision; before it, nothing of the study has changed. What is left to do then (to move other
files to their places, the plans of extensions) is listed in a file, and the next process that locks the study does it.

    merlin_info/revisions/001/          plan.json, the spec's copies, change.json, ledger/
    merlin_info/revisions/001/before/   what of the study's files the revision has put aside
    merlin_info/switch.json             what is left to do
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from merlin.base.files import file_error, link_or_copy, sync_path, write_text
from merlin.base.records import FileFormat, as_kind, indented, to_plain
from merlin.errors import WorkspaceError, command_line
from merlin.plan.plan import Plan, StepKind
from merlin.plan.plan_io import plan_to_json, read_plan
from merlin.workspace.directory import (
    INFO_DIR,
    PLAN_NAME,
    REVISIONS_DIR,
    Workspace,
    lock_file,
    members,
    open_workspace,
    revision_dir,
)
from merlin.workspace.provenance import read_provenance

SWITCH_NAME = "switch.json"
CHANGE_NAME = "change.json"
BEFORE = "before"
BEGUN = "begun"  # the empty file of a revision that the study has had
AFTER = "after"  # what a revision had made when it was undone
FORMAT = FileFormat("merlin-revision", 1)
_SPEC_COPIES = ("*.orig.yaml", "*.partial.yaml", "*.expanded.yaml", "provenance.json")


class Move(Struct, frozen=True):
    """A file or directory of a workspace that gets another name; paths are relative to the study's."""

    source: str
    target: str
    is_link: bool = False  # the source stays, and the target is the same file, or holds the same files


class StepNote(Struct, frozen=True, kw_only=True):
    """What a revision has changed in one step instance."""

    id: str
    step: str
    why: tuple[str, ...] = ()
    what: str = ""  # new, gone, changed, same, kept
    again: int = 0  # tasks
    kept: int = 0
    collected: int = 0  # tasks of which only the outputs are collected again


class RevisionNote(Struct, frozen=True, kw_only=True):
    """A revision, as `change.json` has it."""

    number: int
    base: int  # the revision that it was made from
    created: str = ""  # ISO 8601 with zone
    user: str = ""
    host: str = ""
    command: str = ""
    spec: str = ""  # path of the spec
    spec_digest: str = ""
    samples: str = ""  # what has changed in the samples, in words
    steps: tuple[StepNote, ...] = ()
    moves: tuple[Move, ...] = ()
    absent: tuple[str, ...] = ()  # paths that it would have put aside, and that were not there
    members: tuple[str, ...] = ()  # the workspaces that it concerns: "" and "extensions/001"


class _Switch(Struct, frozen=True, kw_only=True):
    """What is left to do once the study's plan is that of `revision`."""

    revision: int
    members: tuple[str, ...]
    moves: tuple[Move, ...]


def next_number(study: Workspace) -> int:
    """The number of the next revision; that of one which was undone is not used again."""
    return max([*numbered(study.info / REVISIONS_DIR), study.plan.revision]) + 1


def numbered(folder: Path) -> list[int]:
    """The numbers that entries of a directory have as names, ascending; none if there is no such directory."""
    return sorted(int(e.name) for e in folder.iterdir() if e.name.isdecimal()) if folder.is_dir() else []


def aside_dir(number: int, folder: str) -> str:
    """Where a revision keeps files of the study (`BEFORE` or `AFTER`), relative to the study's workspace."""
    return f"{INFO_DIR}/{REVISIONS_DIR}/{number:03d}/{folder}"


def keep_present(member: Workspace, revision: int) -> None:
    """Keep the plan of a member and the copies of its spec, so that the study can go back to the present revision.

    An extension may have been added since, and have the plan that it began with.
    """
    folder = revision_dir(member.info, revision)
    if (folder / PLAN_NAME).is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for path in _spec_copies(member.info):
        _put(path, folder / path.name)
    write_text(folder / PLAN_NAME, plan_to_json(member.plan))


def _spec_copies(info: Path) -> Iterator[Path]:
    for pattern in _SPEC_COPIES:
        yield from info.glob(pattern)


# ----------------------------------------------------------------------- from one to another


def begin_switch(study: Workspace, plan: Plan, moves: Iterable[Move], concerned: Iterable[str]) -> None:
    """Let the study have another revision, whose plans lie in their places; `finish_switch` does the rest.

    Raises OSError; the study is as it was then.
    """
    left = _Switch(revision=plan.revision, members=tuple(concerned), moves=tuple(moves))
    path = study.info / SWITCH_NAME
    try:
        write_text(path, json.dumps({**to_plain(left), **FORMAT.head()}) + "\n")
        write_text(study.plan_path, plan_to_json(plan))
    except OSError:
        if read_plan(study.plan_path).revision != plan.revision:  # else it took effect in spite of the error
            path.unlink(missing_ok=True)
            raise


def cut_off_switch(root: Path) -> int | None:
    """The revision that the study at `root` has by its plan, and not yet by all of its files; None if there is none.

    Raises WorkspaceError if what is left to do cannot be read.
    """
    left = _read_switch(root / INFO_DIR / SWITCH_NAME)
    if left is None or read_plan(root / INFO_DIR / PLAN_NAME).revision != left.revision:
        return None
    return left.revision


def finish_switch(root: Path) -> None:
    """Do what an update that was cut off has left to do, if there is anything. The caller holds the study.

    Raises WorkspaceError if it cannot be done; it may be tried again.
    """
    path = root / INFO_DIR / SWITCH_NAME
    if path.is_file():
        with lock_file(path.with_suffix(".lock"), f"the update of {root} is being finished"):
            _finish_once(root, path)


def _finish_once(root: Path, path: Path) -> None:
    left = _read_switch(path)
    if left is None:
        return
    try:
        if read_plan(root / INFO_DIR / PLAN_NAME).revision == left.revision:
            _finish(root, left)
        path.unlink()
    except OSError as error:
        raise WorkspaceError(
            f"the update of {root} to revision {left.revision} has begun and cannot be finished: {file_error(error)}, "
            f"then {command_line('restart', root)} finishes it"
        ) from error


def _read_switch(path: Path) -> _Switch | None:
    """What is left to do; None if the file is gone."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        FORMAT.require(data)
        return as_kind(data, _Switch)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WorkspaceError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise WorkspaceError(f"{path} is damaged: {error}; it says what an update has left to do") from error


def _finish(root: Path, left: _Switch) -> None:
    for member in left.members:
        info = root / member / INFO_DIR
        folder = revision_dir(info, left.revision)
        if member:
            _put(folder / PLAN_NAME, info / PLAN_NAME)
        wanted = {path.name for path in _spec_copies(folder)}
        for path in _spec_copies(info):
            if path.name not in wanted:
                path.unlink()
        for path in _spec_copies(folder):
            _put(path, info / path.name)
    begun = revision_dir(root / INFO_DIR, left.revision) / BEGUN
    begun.touch()
    parents = {begun.parent}
    for move in left.moves:
        source, target = root / move.source, root / move.target
        _carry_out(source, target, move.is_link)
        parents |= {source.parent, target.parent}
    for parent in parents:
        if parent.is_dir():
            sync_path(parent)


def _put(source: Path, target: Path) -> None:
    write_text(target, source.read_text(encoding="utf-8", errors="surrogateescape"))


def _carry_out(source: Path, target: Path, is_link: bool) -> None:
    """Move or link a file or directory, unless that was done before."""
    if not os.path.lexists(source) or os.path.lexists(target):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_link:
        link_or_copy(source, target)
    else:
        source.rename(target)


# ----------------------------------------------------------------------- history


def write_note(study: Workspace, note: RevisionNote) -> None:
    text = indented({**FORMAT.head(), **to_plain(note)}, ensure_ascii=False)
    write_text(revision_dir(study.info, note.number) / CHANGE_NAME, text + "\n")


def history(study: Workspace) -> list[RevisionNote]:
    """All revisions that the study has had, the first one first; those that were only prepared are left out.

    Raises WorkspaceError if a note is damaged.
    """
    first = study.plan if study.plan.revision == 0 else read_plan(revision_dir(study.info, 0) / PLAN_NAME)
    folder = study.info if study.plan.revision == 0 else revision_dir(study.info, 0)
    began = read_provenance(folder)
    found = [
        RevisionNote(
            number=0,
            base=0,
            created=first.created,
            user=began.user,
            host=began.host,
            command=began.command,
            spec=first.spec_path,
            spec_digest=first.spec_digest,
        )
    ]
    for number in numbered(study.info / REVISIONS_DIR):
        path = revision_dir(study.info, number)
        if number and (path / BEGUN).exists():
            found.append(_read_note(path / CHANGE_NAME))
    return found


def plans_of(member: Workspace) -> list[Plan]:
    """The plan of a study or extension, and those of all revisions that it has had. Raises WorkspaceError."""
    paths = sorted((member.info / REVISIONS_DIR).glob(f"*/{PLAN_NAME}"))
    return [member.plan, *(read_plan(path) for path in paths)]


def clear_prepared(study: Workspace) -> None:
    """Remove what an update has prepared that did not take effect. The caller holds the study."""
    present = read_plan(study.plan_path).revision
    for member in members(study):
        folder = member.info / REVISIONS_DIR
        for path in list(folder.iterdir()) if folder.is_dir() else ():
            number = int(path.name) if path.name.isdecimal() else 0
            if number not in (0, present) and not (revision_dir(study.info, number) / BEGUN).exists():
                shutil.rmtree(path, ignore_errors=True)


def _read_note(path: Path) -> RevisionNote:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        FORMAT.require(data)
        return as_kind(data, RevisionNote)
    except (OSError, ValueError) as error:
        raise WorkspaceError(f"{path} cannot be read: {error}") from error


def note_to_undo(study: Workspace) -> RevisionNote:
    """The note of the present revision. Raises WorkspaceError if there is nothing to go back to, or not any more."""
    number = study.plan.revision
    if number == 0:
        raise WorkspaceError(f"{study.path} is at revision 0, its first one; there is nothing to undo")
    note = _read_note(revision_dir(study.info, number) / CHANGE_NAME)
    lost = [m.target for m in note.moves if not m.is_link and not os.path.lexists(study.path / m.target)]
    if lost:
        raise WorkspaceError(
            f"revision {note.base} cannot be restored: {study.path / lost[0]} is gone"
            + (f", and {len(lost) - 1:,} more" if lost[1:] else "")
        )
    _require_data_sets(note, study, _added(study, note))
    return note


def begin_undo(study: Workspace, note: RevisionNote) -> None:
    """Go back to the revision that the present one was made from; the caller holds the study. `note`: `note_to_undo`.

    What the present revision has made is put aside, and what it had put aside comes back, with `finish_switch`.
    Raises as `begin_switch`.
    """
    plan = read_plan(revision_dir(study.info, note.base) / PLAN_NAME)
    begin_switch(study, plan, _moves_back(note, _added(study, note)), note.members)


def _added(study: Workspace, note: RevisionNote) -> list[str]:
    """The extensions that were added to the revision."""
    return [member.member for member in members(study) if member.member not in note.members]


def _require_data_sets(note: RevisionNote, study: Workspace, added: list[str]) -> None:
    """Raise WorkspaceError if extensions have added rows to a data set that was not put aside before."""
    aside = {*note.absent, *(move.source for move in note.moves)}
    kept = [
        each.id for each in study.plan.instances if each.kind is StepKind.AGGREGATE and each.id not in aside
    ]
    if added and kept:
        raise WorkspaceError(
            f"{study.path / added[0]} was added to revision {note.number}, and its rows are in {kept[0]}; "
            f"revision {note.base} cannot be restored without losing them"
        )


def _moves_back(note: RevisionNote, added: list[str]) -> Iterator[Move]:
    aside = aside_dir(note.number, AFTER)
    new = [step.id for step in note.steps if step.what == "new"]
    back = [move for move in note.moves if not move.is_link]
    paths = dict.fromkeys((*added, *new, *note.absent, *(move.source for move in back)))
    for path in paths:
        if not is_inside(path, paths):  # else it moves with its directory
            yield Move(path, f"{aside}/{path}")
    for move in back:
        yield Move(move.target, move.source)


def is_inside(path: str, others: Container[str]) -> bool:
    """Whether one of the other paths is a directory above this one."""
    return any(path[:end] in others for end, letter in enumerate(path) if letter == "/")


def require_same_plan(workspace: Workspace) -> None:
    """Raise WorkspaceError if the study was updated since it was opened. The caller holds it."""
    if open_workspace(workspace.path).digest != workspace.digest:
        raise WorkspaceError(f"{workspace.path} was updated a moment ago; give the command again")
