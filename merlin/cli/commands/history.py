"""`merlin history` shows the revisions of a study that was updated, and goes back by one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.base.records import to_plain
from merlin.base.text import count
from merlin.cli.options import json_option, spec_or_workspace_argument
from merlin.cli.output import print_json, print_table, remark

_WHAT = {"kept": "its results are kept, by --keep"}
_PARTLY = ("new", "gone")  # what some instances of a step may be, and others not
_MEMBER = re.compile(r"^extensions/\d+/")
MANIFEST_SUFFIX = ".manifest"

if TYPE_CHECKING:
    from merlin.workspace.revisions import RevisionNote, StepNote


@click.command()
@spec_or_workspace_argument
@click.option("--undo", is_flag=True, help="Go back to the revision that the present one was made from.")
@json_option
def history(spec_or_workspace: Path, undo: bool, as_json: bool) -> None:
    """Show the revisions of a study: when each was made, by whom, and what it has changed.

    With --undo, the study becomes what it was before the last update: its plan, its outcomes and its files are those of
    before, and what the update has made is put aside.
    """
    from merlin.api.revising import undo_update
    from merlin.cli.find import find_workspace
    from merlin.workspace.directory import open_workspace
    from merlin.workspace.revisions import history as history_of

    study = find_workspace(spec_or_workspace)
    study = open_workspace(study.root)
    if undo:
        note = undo_update(study, remark)
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
        made = note.created[:16].replace("T", " ")
        rows.append((str(note.number), state, made, note.user, "\n".join(_changes(note))))
    columns = ("revision", "", "made", "by", "what has changed")
    print_table(columns, rows, right=("revision",), folded="what has changed")


def _changes(note: RevisionNote) -> list[str]:
    """What the revision has changed, in words, as lines."""
    from merlin.plan.change_words import first_reasons

    if note.number == 0:
        return ["the study began"]
    reasons: dict[str, dict[str, None]] = {}  # by step, each reason once
    steps: dict[str, list[StepNote]] = {}
    for step in note.steps:
        if not step.id.endswith(MANIFEST_SUFFIX):  # a manifest has the same reasons as its data set
            steps.setdefault(step.step, []).append(step)
    for name, several in steps.items():
        if words := [" ".join(each.split()) for each in _of_step(several)]:
            reasons[name] = dict.fromkeys(words)
    lines = [f"samples: {note.samples}"] if note.samples else []
    lines += [f"{step}: {first_reasons(list(words))}" for step, words in reasons.items()]
    again, collected = sum(step.again for step in note.steps), sum(step.collected for step in note.steps)
    lines += [f"outputs of {count(collected, 'task')} collected again"] if collected else []
    lines += [f"{count(again, 'task')} run again"] if again else []
    return lines or ["nothing that results depend on"]


def _of_step(several: list[StepNote]) -> Iterator[str]:
    """What has changed in a step; `several` are the notes of its instances."""
    from merlin.plan.change_words import some_are

    is_whole = len({each.what for each in several}) == 1
    for each in several:
        if each.what == "changed":
            yield from each.why
        elif each.what != "same" and (is_whole or each.what not in _PARTLY):
            yield _WHAT.get(each.what, each.what)
    for what in () if is_whole else _PARTLY:
        if told := some_are((_MEMBER.sub("", each.id) for each in several if each.what == what), what):
            yield told


def _plain(note: RevisionNote, line: list[int]) -> dict[str, Any]:
    """The note without its list of moved files; `line`: the present revision, and those that it is based on."""
    values = {key: value for key, value in to_plain(note).items() if key != "moves"}
    return {"is_current": note.number == line[0], "is_undone": note.number not in line, **values}
