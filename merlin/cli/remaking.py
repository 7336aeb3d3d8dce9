"""Makes the data sets of a study again in their places, and leaves what depends on them to a restart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from merlin.api.remaking import left_to_collect, refuse_other_changes
from merlin.api.updating import UpdateOptions
from merlin.cli.output import print_json, remark
from merlin.cli.running import Work, run_works, told
from merlin.cli.updating import update_study
from merlin.errors import command_line
from merlin.execution.conductor import RunOptions
from merlin.status.snapshot import take_snapshot
from merlin.workspace.directory import members

if TYPE_CHECKING:
    from merlin.spec.load import Spec
    from merlin.workspace.options import StudyOptions


def remake_data_sets(
    spec: Spec, options: StudyOptions, path: Path, *, num_workers: int | None, as_json: bool
) -> int:
    """Update the data sets of the study at `path` to a spec that changes nothing else; returns the exit code.

    Raises UsageError, and changes nothing, if something else would run; else as `update_study`.
    """
    study, _ = update_study(
        spec, options, path, UpdateOptions(), yes=True, as_json=as_json, check=refuse_other_changes
    )
    works = [
        Work(study=each, options=RunOptions(workers=num_workers, only=only))
        for each, only in left_to_collect(members(study))
    ]
    reports = run_works(works, None, as_json=as_json)
    for each in members(study):
        if steps := [step.step for step in take_snapshot(each).steps if step.missing]:
            remark(f"still to run: {', '.join(steps)}; to run that: {command_line('restart', study.path)}")
            break
    if not reports:
        if as_json:
            print_json({"workspace": study.path, "note": "nothing is left to collect", "exit_code": 0})
        return 0
    return told(reports, as_json=as_json)
