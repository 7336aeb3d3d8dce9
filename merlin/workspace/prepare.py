"""From a spec to a workspace that is ready to run: directories, provenance, samples, plan."""

from __future__ import annotations

import contextlib
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from merlin.base.clock import local_now
from merlin.base.document.tokens import substitute
from merlin.base.files import write_text
from merlin.errors import MerlinError, WorkspaceError
from merlin.plan.expand import make_plan
from merlin.plan.growing import Extends
from merlin.plan.parameters import Combination, as_block, combinations
from merlin.plan.plan import Plan
from merlin.plan.plan_io import write_plan
from merlin.plan.study_variables import runtime_variables
from merlin.workspace.acquire import acquire_dependencies
from merlin.workspace.code_files import require_files, with_code
from merlin.workspace.directory import INFO_DIR, PLAN_NAME, Workspace, output_path, workspace_stem
from merlin.workspace.launchers import launchers_here
from merlin.workspace.options import StudyOptions
from merlin.workspace.provenance import package_version, write_provenance
from merlin.workspace.same_samples import RowsDigest, digest, stamp
from merlin.workspace.samples import open_samples
from merlin.workspace.samples_table import SamplesTable
from merlin.workspace.sampling import write_samples
from merlin.workspace.spec_samples import (
    design_of,
    expected_samples,
    is_made,
    located_samples,
    refuse_unsafe_text,
    run_generate,
    samples_path,
    stored_path,
)
from merlin.workspace.used_samples import keep_samples

if TYPE_CHECKING:
    from merlin.spec.load import Spec


def prepare_study(
    spec: Spec, options: StudyOptions | None = None, note: Callable[[str], None] | None = None
) -> Workspace:
    """Create a new workspace with everything in it that a run needs; the plan is written last.

    If anything fails, the workspace stays for diagnosis, with the message in ``merlin_info/error.txt`` and no
    plan.

    Args:
        spec: A checked spec.
        options: Of the command line.
        note: Receives one line for what takes long.

    Raises:
        SamplesError: there are no usable samples, or the command that makes them failed.
        WorkspaceError: the workspace cannot be created.
    """
    options = options or StudyOptions()
    say = note or (lambda _: None)
    combos = combinations_for(spec, options)
    require_files(spec, runtime_variables(spec, _some_workspace(spec)), combos)
    are_given = _check_given_samples(spec, options)
    workspace = _new_directory(spec)
    info = workspace / INFO_DIR
    with preparing(workspace):
        variables = runtime_variables(spec, workspace)
        write_provenance(
            spec, info, variables, as_block(combos) if options.pgen else None, is_dry=options.is_dry
        )
        acquire_dependencies(spec, variables, say)
        require_files(spec, variables, combos)  # those of a repository are there now
        table, samples_file, seen = _make_samples(spec, options, info, variables, say)
        num = None if table is None else table.num
        plan = plan_study(spec, workspace, combos, num, samples_file, options=options)
        if table is not None and not are_given:
            refuse_unsafe_text(spec, options, plan, table)
        plan = with_samples_digest(plan, table, seen)
        keep_samples(info, plan, table)
        write_plan(info / PLAN_NAME, plan)
    return Workspace(workspace, plan)


def combinations_for(spec: Spec, options: StudyOptions) -> tuple[Combination, ...]:
    """The combinations of parameters, of the spec or of the generator that the command line names."""
    return combinations(spec.document, options.pgen, options.pargs, spec.variables)


@contextmanager
def preparing(workspace: Path) -> Iterator[None]:
    """Make merlin_info; an error that is raised in the block is also written there.

    Raises:
        WorkspaceError: in place of OSError.
    """
    info = workspace / INFO_DIR
    try:
        info.mkdir()
        (info / "ledger").mkdir()
        yield
    except MerlinError as error:
        _keep_message(info, str(error))
        raise
    except OSError as error:
        _keep_message(info, str(error))
        raise WorkspaceError(f"cannot prepare {workspace}: {error}") from error


def with_samples_digest(plan: Plan, table: SamplesTable | None, known: str = "") -> Plan:
    """The plan with the digest of its samples: a file of the user's may get more rows later, and any may be damaged."""
    if table is None or plan.samples is None:
        return plan
    # before the rows are read, so that a later change is not taken for them
    seen = stamp(Path(plan.workspace) / plan.samples.file)
    return replace(plan, samples=replace(plan.samples, digest=known or digest(table, table.num), stamp=seen))


def plan_study(
    spec: Spec,
    workspace: Path,
    combos: Sequence[Combination],
    num_samples: int | None,
    samples_file: str | None,
    *,
    options: StudyOptions,
    seed: int = 0,
    extending: Extends | None = None,
) -> Plan:
    """`make_plan` for this moment and this machine; `seed` is that of the study, if it is there already."""
    plan = make_plan(
        spec,
        workspace=workspace,
        num_samples=num_samples,
        samples_file=samples_file,
        combos=combos,
        created=local_now(),
        study_id=uuid.uuid4().hex,
        seed=seed,
        launchers=launchers_here(spec, is_dry=options.is_dry),
        code_version=code_version(),
        extending=extending,
    )
    variables = runtime_variables(spec, workspace, None if extending is None else extending.root)
    return with_code(spec, plan, variables, combos)


def plan_only(spec: Spec, options: StudyOptions | None = None) -> Plan:
    """The plan that `prepare_study` would make now; writes nothing and runs nothing.

    The number of samples is known from a built-in method or an existing file. Where only a command could
    find it, the plan has ``samples.num == 0`` and steps that run per sample have no tasks.
    """
    options = options or StudyOptions()
    moment = datetime.now()
    while (workspace := _workspace_at(spec, moment)).exists():  # its samples are not those of this plan
        moment += timedelta(seconds=1)
    samples = spec.document.merlin.samples
    num, file = None, None
    if samples is not None:
        path = samples_path(samples, options, runtime_variables(spec, workspace))
        num, file = expected_samples(spec, samples, path, options), stored_path(path, workspace)
    return plan_study(spec, workspace, combinations_for(spec, options), num, file, options=options)


def code_version() -> str:
    """The version of this program, "" if it is not installed."""
    return package_version("merlin-ensembles")


# --------------------------------------------------------------------------------------- directory


def _new_directory(spec: Spec) -> Path:
    """Make ``NAME_TIMESTAMP``; where another study has taken this second, the next free one."""
    folder, moment = output_path(spec), datetime.fromtimestamp(time.time())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            path = _workspace_at(spec, moment)
            try:
                path.mkdir()
                return path
            except FileExistsError:
                moment += timedelta(seconds=1)
    except OSError as error:
        raise WorkspaceError(
            f"cannot create a workspace in {folder}: {error.strerror}; name another place with --output DIR"
        ) from error


def _some_workspace(spec: Spec) -> Path:
    """A place where the workspace could be, for checks before there is one."""
    return _workspace_at(spec, datetime(2000, 1, 1))


def _workspace_at(spec: Spec, moment: datetime) -> Path:
    return output_path(spec) / f"{workspace_stem(spec.document.description.name)}_{moment:%Y%m%d-%H%M%S}"


def _keep_message(info: Path, message: str) -> None:
    if info.is_dir():
        with contextlib.suppress(OSError):  # the first error is the one to report
            write_text(info / "error.txt", message + "\n")


# ----------------------------------------------------------------------------------------- samples


def _make_samples(
    spec: Spec, options: StudyOptions, info: Path, variables: Mapping[str, str], say: Callable[[str], None]
) -> tuple[SamplesTable | None, str | None, str]:
    """Find, copy or make the samples and look at every row; returns them with their path for the plan.

    Also their digest, if it is known.
    """
    samples = spec.document.merlin.samples
    if samples is None:
        return None, None, ""
    rows = None
    path, generate = samples_path(samples, options, variables), samples.generate
    if generate is None or not is_made(samples, options, path):
        if options.samples_file is not None and path.exists():  # else a pattern for many files
            path = Path(shutil.copyfile(path, info / path.name))
        table = open_samples(path, samples.column_labels)
    elif generate.cmd is None:
        say("generating samples")
        rows = RowsDigest() if path.suffix.lower() == ".npy" else None
        write_samples(
            path, design_of(spec, samples), samples.column_labels, also=rows.update if rows else None
        )
        # finite by construction, and reading them back would take longer than making them
        table = open_samples(path, samples.column_labels)
    else:
        say("generating samples")
        run_generate(spec, substitute(generate.cmd, variables), path, info)
        table = located_samples(spec, options, path, check=True)
    return table, stored_path(path, info.parent), str(rows or "")


def _check_given_samples(spec: Spec, options: StudyOptions) -> bool:
    """Look at every row of samples that exist already, before anything is written; whether there are any."""
    samples = spec.document.merlin.samples
    if samples is None:
        return False
    path = samples_path(samples, options, runtime_variables(spec, _some_workspace(spec)))
    if is_made(samples, options, path):
        return False
    table = located_samples(spec, options, path, check=True)
    if not table.known_numeric:
        refuse_unsafe_text(spec, options, plan_only(spec, options), table)
    return True
