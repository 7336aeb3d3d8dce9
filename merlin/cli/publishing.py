"""Publishes a prepared study to the broker and says what to type next; `run` and `restart` share it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from merlin.base.text import count
from merlin.cli.output import flush, remark
from merlin.config.load import find_config
from merlin.config.model import Config
from merlin.errors import ExecutionError, UsageError, command_line
from merlin.workspace.directory import Workspace

if TYPE_CHECKING:
    from merlin.execution.conductor import RunOptions


def broker_for(target: Path, *, local: bool, num_workers: int | None) -> Config | None:
    """The configured broker, reachable; None where none is configured or `local` is asked for.

    `target` is the spec or workspace that workers are for.

    Raises:
        ConfigError: the configuration is wrong.
        ExecutionError: a server cannot be used; found out within ten seconds.
        UsageError: `num_workers` of a local run is given, and the run would not be local.
    """
    config = None if local else find_config()
    if config is None:
        return None
    if num_workers is not None:
        raise UsageError(
            f"--workers is for runs on this machine, and a broker is configured ({config.path or config.origin}); "
            f"add --local, or start workers: {command_line('run-workers', target)}"
        )
    from merlin.views.servers import require_reachable  # runs on this machine do not need it

    _ = config.key  # before a workspace is made: without a key that is safe to use nothing can be published
    require_reachable(config, hint="To run on this machine alone, add --local.")
    return config


def hand_over(
    workspace: Workspace,
    config: Config,
    options: RunOptions,
    *,
    workers_command: str = "",
    jobs_command: str | None = None,
) -> dict[str, Any]:
    """Hand the study to workers; returns what was published, who is there to do it, and the next commands.

    The exit code is 0 once it is published, or when every task has ended ok; 1 if all have ended and some not ok.
    `workers_command` starts workers, and `jobs_command` brings workers in batch jobs ("": there is none). By default,
    both are the commands of the workspace.
    """
    from merlin.execution.distributed.open_study import open_study  # runs on this machine do not need it
    from merlin.views.queues import unserved_queues
    from merlin.views.ways_to_start import jobs_command as command_in_jobs

    try:
        opened = open_study(workspace, config, again=options.again)
    except ExecutionError:
        remark(f"publish it again with: {command_line('restart', workspace.path)}")
        raise
    if jobs_command is None:
        jobs_command = command_in_jobs(workspace.plan, workspace.path)
    queues = list(dict.fromkeys(i.queue for i in workspace.plan.instances))
    return {
        "workspace": str(workspace.path),
        "name": workspace.plan.name,
        "exit_code": int(opened.is_complete and opened.already_ok < opened.planned),
        "broker": config.broker.safe_url,
        "published": opened.num_messages,
        "planned": opened.planned,
        "ok": opened.already_ok,
        "resumed": opened.resumed,
        "complete": opened.is_complete,
        "note": opened.note,
        "queues": [config.display_queue(config.queue_name(queue)) for queue in queues],
        "unserved_queues": unserved_queues(config, queues),
        "next": {
            "run-workers": workers_command or command_line("run-workers", workspace.path),
            **({"workers": jobs_command} if jobs_command else {}),
            "monitor": command_line("monitor", workspace.path),
        },
    }


def show_report(report: dict[str, Any], *, names_workers: bool = True) -> None:
    """Print a report for people, on stdout; with the commands that start workers, unless they come by themselves."""
    print(f"workspace {report['workspace']}")
    if report["complete"]:
        print(report["note"])
        return
    if report["resumed"]:
        print(report["note"])
    else:
        done = f" ({report['ok']:,} of them ok)" if report["ok"] else ""
        sent = f"{count(report['planned'], 'task')}{done} in {count(report['published'], 'message')}"
        print(f"published {report['name']}: {sent}, to {report['broker']}")
    if names_workers:
        _show_ways(report)
    print(f"to watch:\n  {report['next']['monitor']}")
    flush()


def _show_ways(report: dict[str, Any]) -> None:
    if report["unserved_queues"]:
        print(f"no worker serves {', '.join(report['unserved_queues'])}; start some:")
    else:
        print("workers are there; for more:")
    print(f"  {report['next']['run-workers']}")
    if "workers" in report["next"]:
        print(f"or in batch jobs:\n  {report['next']['workers']}")
