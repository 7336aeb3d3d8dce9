"""Says on the command line what the next extension of a study adds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from merlin.api.extending import next_extension
from merlin.base.text import count
from merlin.cli.output import print_json, remark
from merlin.cli.reading_samples import reading_shown
from merlin.errors import command_line
from merlin.plan.plan import Plan
from merlin.status.snapshot import take_snapshot
from merlin.workspace.directory import Workspace, members
from merlin.workspace.holding import open_root

if TYPE_CHECKING:
    from merlin.spec.load import Spec
    from merlin.workspace.options import StudyOptions


def extend(spec: Spec, options: StudyOptions, path: Path, *, only_new: bool, as_json: bool) -> Workspace:
    """Prepare the next extension of the study at `path`; ends the command if there are no new samples.

    Raises as `next_extension`.
    """
    study = open_root(path, remark, "--extend")
    studies = members(study)
    with reading_shown():
        made = next_extension(spec, options, study, only_new=only_new, note=remark)
    if made is None:
        sys.exit(_nothing_to_add(studies, as_json=as_json))
    _announce(studies, made)
    return made


def preview(spec: Spec, options: StudyOptions, path: Path, *, only_new: bool, as_json: bool) -> Plan:
    """The plan of the next extension of the study at `path`; ends the command if there are no new samples.

    Raises SpecError as `next_extension` does.
    """
    study = open_root(path, remark, "--extend")
    from merlin.workspace.extend import plan_extension

    with reading_shown():
        plan = plan_extension(spec, options, study, only_new=only_new)
    if plan is None:
        sys.exit(_nothing_to_add(members(study), as_json=as_json))
    return plan


def _nothing_to_add(studies: Sequence[Workspace], *, as_json: bool) -> int:
    """Say so; 0, or 1 if one of the studies is not finished."""
    num = sum(study.plan.num_samples for study in studies)
    open_ones = [study for study in studies if take_snapshot(study).totals.missing]
    code = 1 if open_ones else 0
    path = studies[0].path
    note = f"nothing to add: {path} has {count(num, 'sample')}, as many as the spec says in all"
    if as_json:
        print_json({"workspace": path, "samples": num, "new_samples": 0, "exit_code": code, "note": note})
    else:
        print(note)
    for study in open_ones:
        remark(f"not finished: {command_line('restart', study.path)}")
    return code


def _announce(studies: Sequence[Workspace], made: Workspace) -> None:
    assert made.plan.samples is not None
    new, first = made.plan.samples.num, made.first_sample
    remark(
        f"{count(new, 'new sample')}, {first:,} to {first + new - 1:,}, in {made.path}; "
        f"the study has {first + new:,} in all"
    )
    if any(take_snapshot(study).totals.missing for study in studies):
        remark(
            f"what was there before is not finished; {command_line('restart', made.root)} does that, "
            "and the data sets get the new rows then"
        )
