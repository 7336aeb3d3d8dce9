"""`merlin restart`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from merlin.cli.argv import ManyCommand, ManyOption
from merlin.cli.options import json_option, parse_failure_limit, workers_option, workspace_argument
from merlin.errors import UsageError


@click.command(cls=ManyCommand)
@workspace_argument
@click.option("--local", is_flag=True, help="Run on this machine, even where a broker is configured.")
@click.option("--failed", is_flag=True, help="Run failed tasks again too, and those skipped because of them.")
@click.option(
    "--step",
    "steps",
    cls=ManyOption,
    leaves_last=True,
    metavar="STEP …",
    help="With --failed: only these.",
)
@click.option(
    "--max-failures",
    metavar="N|P%",
    help="This run alone: in place of what steps say as max_failures; 100% means no limit.",
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
    from merlin.cli.extending import restart_all, to_restart
    from merlin.cli.publishing import broker_for
    from merlin.workspace.directory import open_workspace

    if steps and not failed:
        raise UsageError("--step narrows --failed; give both: merlin restart WORKSPACE --failed --step NAME")
    opened = open_workspace(workspace)
    known = {i.step for i in opened.plan.instances} | {i.id for i in opened.plan.instances}
    for step in steps:
        if step not in known:
            names = ", ".join(sorted({i.step for i in opened.plan.instances}))
            raise UsageError(f"the study has no step {step!r}; it has: {names}")
    limit = None if max_failures is None else parse_failure_limit(max_failures)
    config = broker_for(workspace, local=local, num_workers=num_workers)
    if config is not None and limit is not None:
        raise UsageError(
            "--max-failures is for runs on this machine, and a broker is configured; add --local"
        )
    studies = to_restart(opened, failed=failed)
    for study in studies:
        if study.samples_may_change:
            study.samples()  # refuses now what the first chunk would refuse later
    sys.exit(
        restart_all(
            studies,
            config,
            num_workers=num_workers,
            as_json=as_json,
            failed=failed,
            steps=steps,
            max_failures=limit,
        )
    )
