"""`merlin restart` finishes a study that was stopped, and runs nothing again that is finished."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.cli.argv import ManyCommand
from merlin.cli.options import (
    json_option,
    local_option,
    parse_failure_limit,
    steps_option,
    workers_option,
    workspace_argument,
)
from merlin.cli.output import remark
from merlin.errors import UsageError, command_line

if TYPE_CHECKING:
    from merlin.workspace.directory import Workspace


@click.command(cls=ManyCommand)
@workspace_argument
@local_option
@click.option("--failed", is_flag=True, help="Run failed tasks again too, and those skipped because of them.")
@steps_option("--step", help="With --failed: only these.")
@click.option(
    "--max-failures",
    metavar="N|P%",
    help="Limit for this run, in place of max_failures of the steps; 100% means no limit.",
)
@workers_option
@json_option
def restart(
    workspace: Path,
    local: bool,
    failed: bool,
    steps: tuple[str, ...],
    max_failures: str | None,
    num_workers: int | None,
    as_json: bool,
) -> None:
    """Finish the study in WORKSPACE: run what is missing, and nothing that has finished.

    Its extensions follow, if they are not finished; WORKSPACE/extensions/001 is that extension alone. Failed tasks
    stay as they are unless --failed is given. With a broker the missing tasks are published for workers, as merlin
    run does it; without, or with --local, they run here. Exit codes as for merlin run.
    """
    from merlin.api.left_to_run import refuse_changed_samples, refuse_failed_before, with_work
    from merlin.cli.publishing import broker_for
    from merlin.cli.running import Work, run_works, told
    from merlin.execution.conductor import RunOptions
    from merlin.plan.job_policy import needs_no_workers
    from merlin.plan.reopen import Again
    from merlin.workspace.holding import open_finished

    if steps and not failed:
        raise UsageError("--step narrows --failed; give both: merlin restart WORKSPACE --failed --step NAME")
    opened = open_finished(workspace, remark)
    _tell_of_edits(opened)
    opened.plan.check_steps(steps, also={instance.id for instance in opened.plan.instances})
    limit = None if max_failures is None else parse_failure_limit(max_failures)
    local = local or needs_no_workers(opened.plan.instances)
    config = broker_for(workspace, local=local, num_workers=num_workers)
    if config is not None and limit is not None:
        raise UsageError(
            "--max-failures is for runs on this machine, and a broker is configured; add --local"
        )
    again = Again(failed=failed, steps=steps or None)
    studies = with_work(opened, again)
    refuse_changed_samples(studies)
    if not again:
        refuse_failed_before(studies, limit)
    options = RunOptions(workers=num_workers, again=again, max_failures=limit)
    works = [Work(study=study, options=options) for study in studies]
    sys.exit(told(run_works(works, config, as_json=as_json), as_json=as_json))


def _tell_of_edits(study: Workspace) -> None:
    """Say so if the spec has been edited since: a restart finishes the study as it was planned."""
    from merlin.workspace.directory import members
    from merlin.workspace.provenance import read_provenance, study_options_of

    spec, parts = Path(study.plan.spec_path), members(study)
    with suppress(OSError):  # it is on another machine, or gone
        kept = [copy for part in parts if (copy := part.spec_copy())]
        if kept and spec.read_bytes() not in kept:
            newest = max(parts, key=lambda part: part.plan.created)
            options = study_options_of(read_provenance(newest.info).command)
            update = command_line("run", spec, "--update", study.path, *options)
            remark(
                f"{spec} has changed since the study was planned, which this ignores; to apply it: {update}"
            )
