"""Hands a prepared study to workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from merlin.config.model import Config
from merlin.errors import ExecutionError, command_line
from merlin.execution.distributed.open_study import open_study
from merlin.plan.reopen import Again
from merlin.views.queues import unserved_queues
from merlin.views.ways_to_start import jobs_command as command_in_jobs
from merlin.workspace.directory import Workspace


class Published(Struct, frozen=True, kw_only=True):
    """What was published, who is there to do it, and the next commands, as `merlin run --json` prints it."""

    workspace: str
    name: str
    exit_code: int  # 0: it is published, or every task has ended ok; 1: all have ended, and some not ok
    broker: str
    published: int  # messages
    planned: int  # tasks
    ok: int
    resumed: bool  # it was published before
    complete: bool  # no task is left to run
    note: str
    queues: Sequence[str]
    unserved_queues: Sequence[str]
    next: Mapping[str, str]  # command -> as it is typed


def hand_over(
    workspace: Workspace,
    config: Config,
    again: Again,
    note: Callable[[str], None],
    *,
    workers_command: str = "",
    jobs_command: str | None = None,
) -> Published:
    """Hand the study to workers.

    `workers_command` starts workers, and `jobs_command` brings workers in batch jobs ("": there is none). By default,
    both are the commands of the workspace. Raises ExecutionError if the servers do not answer; a `note` says what to
    do then.
    """
    try:
        opened = open_study(workspace, config, again=again)
    except ExecutionError:
        note(f"publish it again with: {command_line('restart', workspace.path)}")
        raise
    if jobs_command is None:
        jobs_command = command_in_jobs(workspace.plan, workspace.path)
    queues = list(dict.fromkeys(i.queue for i in workspace.plan.instances))
    return Published(
        workspace=str(workspace.path),
        name=workspace.plan.name,
        exit_code=int(opened.is_complete and opened.already_ok < opened.planned),
        broker=config.broker.safe_url,
        published=opened.num_messages,
        planned=opened.planned,
        ok=opened.already_ok,
        resumed=opened.resumed,
        complete=opened.is_complete,
        note=opened.note,
        queues=[config.display_queue(config.queue_name(queue)) for queue in queues],
        unserved_queues=unserved_queues(config, queues),
        next={
            "run-workers": workers_command or command_line("run-workers", workspace.path),
            **({"workers": jobs_command} if jobs_command else {}),
            "monitor": command_line("monitor", workspace.path),
        },
    )
