"""From a spec to a workspace that is ready to run, with everything that may be wrong found before."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from merlin.config.study_places import remember, remember_folder
from merlin.errors import Diagnostic
from merlin.workspace.directory import Workspace
from merlin.workspace.launchers import launch_warnings
from merlin.workspace.options import StudyOptions
from merlin.workspace.prepare import prepare_study
from merlin.workspace.spec_samples import unused_generate

if TYPE_CHECKING:
    from merlin.spec.load import Spec


def check_machine(spec: Spec, *, is_elsewhere: bool) -> list[Diagnostic]:
    """Warnings about functions that cannot be imported here; `is_elsewhere`: they will run on other machines.

    Raises:
        SpecError: a function of a study that runs here cannot be imported.
        UsageError, ExecutionError: a batch scheduler that the study needs cannot be used here.
    """
    from merlin.execution.job_schedulers import require_schedulers_of  # a dry run needs neither of the two
    from merlin.execution.try_import import import_warnings

    if not is_elsewhere:
        require_schedulers_of(spec)
    return import_warnings(spec, elsewhere=is_elsewhere)


def new_study(
    spec: Spec, options: StudyOptions, *, is_moved: bool, note: Callable[[str], None] | None = None
) -> Workspace:
    """Prepare a study, and remember where it is; for its spec, too, if something else than the spec says where
    (`is_moved`). `note` gets a line for what takes long. Raises as `prepare_study`.
    """
    workspace = prepare_study(spec, options, note)
    if is_moved:
        remember(Path(spec.path), workspace.path.parent, os.environ)
    remember_folder(workspace.path.parent, os.environ)
    return workspace


def study_warnings(spec: Spec, workspace: Workspace, *, is_dry: bool = False) -> list[Diagnostic]:
    """Warnings for the user about a prepared study: about its samples, and about how its programs start."""
    found = []
    if workspace.plan.samples is not None and not workspace.plan.extension:
        found += unused_generate(spec, workspace.samples())
    return found + launch_warnings(spec, workspace.plan, is_dry=is_dry)
