"""`merlin run` expands a spec, runs every task, and builds the data sets."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from merlin.base.text import count
from merlin.cli.argv import ManyCommand
from merlin.cli.options import (
    check_update,
    extend_options,
    json_option,
    local_option,
    parse_assignments,
    spec_argument,
    spec_options,
    update_options,
    workers_option,
)
from merlin.cli.output import remark, warn
from merlin.errors import UsageError, command_line

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.spec.load import Spec
    from merlin.workspace.directory import Workspace
    from merlin.workspace.options import StudyOptions


@click.command(cls=ManyCommand)
@spec_argument
@spec_options
@local_option
@click.option("--dry", is_flag=True, help="Write the workspace and every script, but run nothing.")
@extend_options
@update_options
@click.option("-y", "--yes", is_flag=True, help="With --update: do not ask before work is repeated.")
@click.option(
    "--no-errors", is_flag=True, expose_value=False, help="Accepted for old scripts; changes nothing."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="DIR", help="Same as --vars OUTPUT_PATH=DIR."
)
@workers_option
@click.option(
    "--autoscale",
    "scales",
    is_flag=True,
    help="Bring worker jobs as merlin workers autoscale does, until the study has ended; limits: batch.autoscale.",
)
@json_option
def run(
    spec: Path,
    assignments: tuple[str, ...],
    options: StudyOptions,
    local: bool,
    dry: bool,
    study: Path | None,
    only_new: bool,
    updated: Path | None,
    output: Path | None,
    num_workers: int | None,
    scales: bool,
    as_json: bool,
    **update: Any,
) -> None:
    """Run the study that SPEC describes.

    Without a broker, or with --local, on this machine to its end: exits with 0 only if every task ended ok, with 1
    if one failed or is missing, with 2 if the spec is wrong, and with 130 after Ctrl-C (merlin restart finishes
    the study). With a broker: publishes the study for workers (merlin run-workers), and returns at once. With
    --autoscale it stays, brings batch jobs with workers as they are needed, and exits as on this machine.

    With --extend, the number of samples that SPEC says is the one to reach: only the new ones run, in
    WORKSPACE/extensions, and the data sets of WORKSPACE get their rows. If there are none, exits with 0.

    With --update, the study in WORKSPACE becomes what SPEC says. It shows what that changes, and asks before work is
    repeated; merlin history WORKSPACE --undo goes back.
    """
    from merlin.api.beginning import study_warnings
    from merlin.workspace.checking import load_checked

    check_update(updated, study, only_new=only_new, **update)
    variables = _variables(assignments, output)
    loaded = load_checked(spec, variables, options)
    warn(loaded.warnings)
    options = replace(options, is_dry=(is_dry := dry or loaded.document.batch.dry_run))
    config = None if is_dry else _broker_for(loaded, spec, local=local, num_workers=num_workers)
    if scales:
        _check_scaling(loaded, config, is_update=updated is not None)
    if updated is not None:
        from merlin.cli.updating import Manner, run_update

        manner = Manner(is_dry=is_dry, num_workers=num_workers, as_json=as_json, **update)
        sys.exit(run_update(loaded, options, updated, config, manner))
    workspace = (
        _new_study(loaded, options, is_moved="OUTPUT_PATH" in variables)
        if study is None
        else _extension(loaded, options, study, only_new=only_new, as_json=as_json)
    )
    warn(study_warnings(loaded, workspace, is_dry=is_dry))
    if is_dry:
        from merlin.cli.dry import write_scripts

        sys.exit(write_scripts(workspace, as_json=as_json))
    ways = _ways_to_start(spec, assignments, workspace, loaded)
    sys.exit(_carry_out(workspace, config, num_workers, ways, as_json, scales))


def _broker_for(spec: Spec, path: Path, *, local: bool, num_workers: int | None) -> Config | None:
    """The broker for workers, None to run here; warns of what the spec needs and the machine does not have."""
    from merlin.api.beginning import check_machine
    from merlin.cli.publishing import broker_for
    from merlin.plan.job_policy import FLUX

    local = local or spec.document.merlin.resources.task_server == FLUX  # which needs no broker
    config = broker_for(path, local=local, num_workers=num_workers)
    warn(check_machine(spec, is_elsewhere=config is not None))
    return config


def _check_scaling(spec: Spec, config: Config | None, *, is_update: bool) -> None:
    """Raise UsageError where no worker jobs can be brought for the study."""
    from merlin.execution.distributed.autoscaler_caps import GivenCaps, caps_of
    from merlin.execution.distributed.wanted_jobs import JobOptions, require_jobs

    if config is None:
        raise UsageError(
            "--autoscale is for studies on workers: it needs a broker, and neither --dry nor --local"
        )
    if is_update:
        raise UsageError(
            f"--autoscale is not for --update; afterwards: {command_line('workers', 'autoscale', spec.path)}"
        )
    require_jobs(spec.path, spec.document.batch.type)
    caps_of(spec.document.batch, JobOptions(), GivenCaps())


def _variables(assignments: tuple[str, ...], output: Path | None) -> dict[str, str]:
    """The variables that the command line gives."""
    from merlin.base.files import absolute_path

    place = {} if output is None else {"OUTPUT_PATH": str(absolute_path(output))}
    return {**parse_assignments(assignments), **place}


def _extension(spec: Spec, options: StudyOptions, study: Path, *, only_new: bool, as_json: bool) -> Workspace:
    from merlin.cli.extending import extend

    return extend(spec, options, study, only_new=only_new, as_json=as_json)


def _ways_to_start(
    path: Path, assignments: tuple[str, ...], workspace: Workspace, spec: Spec
) -> dict[str, str]:
    """The commands that start workers here, and in batch jobs."""
    from merlin.views.ways_to_start import jobs_command

    words = ("--vars", *assignments) if assignments else ()
    scales = spec.document.batch.autoscale is not None
    return {
        "workers_command": command_line("run-workers", path, *words),
        "jobs_command": jobs_command(workspace.plan, workspace.path, autoscale=scales),
    }


def _new_study(spec: Spec, options: StudyOptions, *, is_moved: bool) -> Workspace:
    """Prepare the study. The lines about it are upstream's, for scripts that look for them."""
    from merlin.api.beginning import new_study
    from merlin.cli.reading_samples import reading_shown

    if "OUTPUT_PATH" in spec.variables:
        remark(f"OUTPUT_PATH: {spec.variables['OUTPUT_PATH']}")
    with reading_shown():
        workspace = new_study(spec, options, is_moved=is_moved)
    if workspace.plan.samples is not None:
        remark(f"{count(workspace.plan.samples.num, 'sample')} loaded.")
    return workspace


def _carry_out(
    workspace: Workspace,
    config: Config | None,
    num_workers: int | None,
    ways: dict[str, str],
    as_json: bool,
    scales: bool,
) -> int:
    """Run the study here or publish it, and report; returns the exit code.

    `ways`: the commands that start workers. If `scales` is true, batch jobs bring the workers.
    """
    from merlin.cli.execute import resumable
    from merlin.cli.running import Work, run_works, told
    from merlin.execution.conductor import RunOptions

    options = RunOptions(workers=num_workers)
    work = Work(study=workspace, options=options, ways=ways, is_named=True, brings_workers=scales)
    with resumable(workspace.path) if config is None else nullcontext():
        if config is None:
            remark(f"workspace {workspace.path}")
        reports = run_works([work], config, as_json=as_json)
    if not scales or not reports[0].needs_workers:
        return told(reports, as_json=as_json)
    from merlin.cli.autoscaling import run_in_jobs

    level = str(click.get_current_context().obj or "INFO")
    return run_in_jobs(workspace.path, level, as_json=as_json)
