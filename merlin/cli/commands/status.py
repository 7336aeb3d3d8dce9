"""`merlin status` shows how far a study is."""

from __future__ import annotations

from pathlib import Path

import click

from merlin.cli.options import json_option, study_options
from merlin.cli.output import check_dump
from merlin.errors import UsageError


@click.command()
@study_options
@click.option("--cb-help", is_flag=True, help="Symbols that are distinct without colours.")
@click.option("--watch", is_flag=True, help="Show it on the whole screen and keep it up to date; q leaves.")
@json_option
def status(
    spec_or_workspace: Path,
    output: Path | None,
    dump: Path | None,
    no_prompts: bool,
    cb_help: bool,
    watch: bool,
    as_json: bool,
) -> None:
    """Show how far a study is, step by step.

    For a directory of workspaces, its studies are listed, one line each, the newest first.
    For a spec, the newest workspace of its study is shown; extensions are shown below their study. Takes well under
    a second for a million tasks and never disturbs the run.
    """
    from merlin.cli.find import find_workspace
    from merlin.workspace.directory import holds_workspaces

    check_dump(dump)
    if holds_workspaces(spec_or_workspace):
        if watch:
            raise UsageError(f"--watch shows one study; {spec_or_workspace} holds several: name one of them")
        from merlin.cli.listing import list_studies

        list_studies([spec_or_workspace], as_json=as_json, dump=dump)
        return
    workspace = find_workspace(spec_or_workspace, output=output, ask=not (no_prompts or as_json))
    if watch:
        from merlin.cli.watch_study import watch_study

        watch_study(workspace, alone=dump is None and not as_json)
        return
    from merlin.cli.study_status import show_status

    show_status(workspace, as_json=as_json, dump=dump, cb_help=cb_help)
