"""`merlin purge` empties the queues of a spec, so that nothing of it waits any more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.base.files import absolute_path
from merlin.base.text import count
from merlin.cli.argv import ManyCommand
from merlin.cli.options import (
    json_option,
    parse_assignments,
    spec_or_workspace_argument,
    steps_option,
    task_server_option,
    vars_option,
)
from merlin.cli.output import can_ask, print_json, remark
from merlin.errors import StudyGoneError, UsageError, WorkspaceError, command_line

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.execution.distributed.redis_registry import RedisRegistry
    from merlin.execution.distributed.registry import StudyInfo

PURGED = "purged"


@click.command(cls=ManyCommand)
@spec_or_workspace_argument
@click.option("-f", "--force", is_flag=True, help="Do not ask.")
@steps_option("--steps", help="Only the queues of these steps.")
@vars_option
@task_server_option
@json_option
def purge(
    spec_or_workspace: Path,
    force: bool,
    steps: tuple[str, ...],
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Empty the queues of a spec's steps, and stop its open studies, so that nothing of them waits any more.

    What runs goes on to its end (merlin cancel kills it). The ledger keeps what has ended: merlin restart
    publishes the rest again. Other studies with the same queues lose nothing.
    """
    from merlin.config.load import require_config
    from merlin.execution.distributed.launch import queues_of
    from merlin.execution.distributed.queues import purge as purge_queues
    from merlin.views.servers import open_registry, require_reachable
    from merlin.views.workers import load_workers

    document, by_step = load_workers(spec_or_workspace, parse_assignments(assignments))
    queues = queues_of(by_step, steps)
    config = require_config()
    require_reachable(config)
    registry = open_registry(config)
    studies = choose_studies(registry.studies(), spec_or_workspace, document.description.name, queues)
    if not force:
        _confirm(config, queues, studies)
    stopped = [_stop(study, registry, config) for study in studies]  # first, or its messages come again
    removed = purge_queues(config, queues)
    shown = {config.display_queue(config.queue_name(name)): num for name, num in removed.items()}
    if as_json:
        print_json({"queues": shown, "studies": stopped, "exit_code": 0})
    else:
        _show(shown, stopped)


def choose_studies(
    studies: Sequence[StudyInfo], path: Path, name: str, queues: Sequence[str]
) -> list[StudyInfo]:
    """The open studies with one of the queues that a purge stops.

    Those of the study in the workspace `path`, with its extensions; for a spec, all of this name.
    """
    if path.is_dir():
        of_spec = [s for s in studies if s.is_of(absolute_path(path))]
    else:
        of_spec = [s for s in studies if s.name == name]
    return [s for s in of_spec if set(queues) & set(s.queues)]


def _confirm(config: Config, queues: Sequence[str], studies: Sequence[StudyInfo]) -> None:
    """Ask on a terminal. Raises UsageError elsewhere, click.Abort for no."""
    from merlin.execution.distributed.queues import queue_depths

    if not can_ask():
        raise UsageError("purge asks before it removes anything, and nobody can answer here; add --force")
    messages = count(sum(info.depth for info in queue_depths(config, queues).values()), "message")
    for study in studies:
        remark(f"  {study.workspace}")
    what = f"{messages} from {', '.join(queues)} and stop {count(len(studies), 'study', 'studies')}"
    click.confirm(f"Remove {what}?", abort=True, err=True)


def _stop(study: StudyInfo, registry: RedisRegistry, config: Config) -> dict[str, Any]:
    """Let nothing of the study start any more; what runs may end. The ledger records this stop."""
    from merlin.execution.distributed.control import stop
    from merlin.workspace.directory import open_workspace

    try:
        running = stop(open_workspace(study.workspace), config, PURGED)
    except (StudyGoneError, WorkspaceError):  # nothing is left that could wait
        running = 0
    registry.withdraw(study.study_id)
    return {"study": study.study_id, "name": study.name, "workspace": study.workspace, "running": running}


def _show(removed: dict[str, int], stopped: Sequence[dict[str, Any]]) -> None:
    for name, num in removed.items():
        print(f"{name}: {count(num, 'message')} removed")
    for study in stopped:
        goes_on = f"; {count(study['running'], 'chunk')} will still end" if study["running"] else ""
        go_on = command_line("restart", study["workspace"])
        print(f"stopped {study['workspace']}{goes_on}; go on with: {go_on}")
    if not stopped:
        print("no open study of this spec")
