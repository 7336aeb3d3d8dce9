"""`merlin history`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.base.records import to_plain
from merlin.base.text import count
from merlin.cli.options import json_option, workspace_argument
from merlin.cli.output import print_json, print_table, remark

MOST_WORDS = 60  # characters of a reason
MANIFEST_SUFFIX = ".manifest"

if TYPE_CHECKING:
    from merlin.workspace.revisions import RevisionNote


@click.command(short_help="Show the revisions of a study that was updated; go back by one.")
@workspace_argument
@click.option("--undo", is_flag=True, help="Go back to the revision that the present one was made from.")
@json_option
def history(workspace: Path, undo: bool, as_json: bool) -> None:
    """Show the revisions of the study in WORKSPACE: when each was made, by whom, and what it has changed.

    With --undo, the study becomes what it was before the last update: its plan, its outcomes and its files are those of
    before, and what the update has made is put aside.
    """
    from merlin.api.revising import undo_update
    from merlin.cli.find import find_workspace
    from merlin.workspace.directory import open_workspace
    from merlin.workspace.revisions import history as history_of

    study = find_workspace(workspace)
    study = open_workspace(study.root)
    if undo:
        note = undo_update(study)
        study = open_workspace(study.path)
        remark(f"{study.path} is at revision {note.base} again")
    notes = history_of(study)
    bases = {note.number: note.base for note in notes}
    line, at = [study.plan.revision], study.plan.revision
    while at in bases and at != 0:
        at = bases[at]
        line.append(at)
    if as_json:
        revisions = [_plain(note, line) for note in notes]
        print_json({"workspace": study.path, "revision": line[0], "revisions": revisions, "exit_code": 0})
        return
    rows = []
    for note in notes:
        state = "now" if note.number == line[0] else "" if note.number in line else "undone"
        rows.append((str(note.number), state, note.created, note.user, _changes(note)))
    print_table(("revision", "", "made", "by", "what has changed"), rows, right=("revision",))


def _changes(note: RevisionNote) -> str:
    """A line of words."""
    if note.number == 0:
        return "the study began"
    words = [note.samples] if note.samples else []
    for step in note.steps:
        if step.what != "same" and not step.id.endswith(MANIFEST_SUFFIX):  # a data set's reasons stand once
            why = " ".join(step.why[0].split()) if step.what == "changed" else step.what
            words.append(f"{step.id}: {why if len(why) <= MOST_WORDS else why[:MOST_WORDS] + '…'}")
    again = sum(step.again for step in note.steps)
    words = words or ["numbers or descriptions"]
    return "; ".join(words) + f" ({count(again, 'task')} again)"


def _plain(note: RevisionNote, line: list[int]) -> dict[str, Any]:
    """Without the files that it has moved; `line`: the present revision, and those that it goes back to."""
    values = {key: value for key, value in to_plain(note).items() if key != "moves"}
    return {"is_current": note.number == line[0], "is_undone": note.number not in line, **values}
